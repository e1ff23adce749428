"""A simulated node that stands for many clients of a population."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from flwr.app import ArrayRecord, Context, Message, Metadata, RecordDict

from flwr_sdp.model_rounding import Rounding
from flwr_sdp.records import records_of
from flwr_sdp.strategies.tally import Tally, fold
from simulations.engine.cohort_message import CohortRequest, cohort_reply
from simulations.engine.local_grid import app_error
from simulations.engine.partial_sum import PartialSum

_log = logging.getLogger("flwr")


def virtual_clients(
    message: Message, context: Context, call_next: Callable[[Message, Context], Message]
) -> Message:
    """Answer for each client that a message names, and reply with the sum: a Flower mod.

    List it **first**, around the mod that privatizes: every client is then a whole call of the app
    with its own partition, and what comes back is folded in as a server would fold in its reply
    (:func:`flwr_sdp.strategies.tally.fold`). Clients keep no state from one call to the next. A
    message that names no clients is passed on as it is.

    **Simulation only**: what leaves is a sum without noise, to be added to the other nodes' sums.
    """
    request, content = CohortRequest.taken_from(message.content)
    if request is None:
        return call_next(message, context)
    (model,) = records_of(content, ArrayRecord)
    total = PartialSum(model, request.clip_norm, request.selection)
    rounding = Rounding.on(model, request.selection)
    tally, awaited = Tally(), set(request.clients)
    for client in request.clients:
        reply = _call(client, message, content, context, call_next)
        fold(
            client,
            reply,
            total,
            tally,
            awaited=awaited,
            rounding=rounding,
            require_local_dp=request.require_local_dp,
        )
        del reply  # or it would stay in memory while the next client trains
    return Message(cohort_reply(total, tally), reply_to=message)


def _call(
    client: int,
    message: Message,
    content: RecordDict,
    context: Context,
    call_next: Callable[[Message, Context], Message],
) -> Message:
    """Return the reply of one client, an error if the app raised, as a node of its own would."""
    node = context.node_config
    own_context = Context(
        run_id=context.run_id,
        node_id=client,
        node_config={**node, "partition-id": client},
        state=RecordDict(),
        run_config=context.run_config,
    )
    # As Flower makes a message that comes off the wire; a new one would need a run to belong to.
    own_message: Message = Message(  # type: ignore[call-overload]
        _copied(content), metadata=_addressed(message.metadata, client)
    )
    try:
        return call_next(own_message, own_context)
    except Exception as error:
        _log.exception("the app failed for partition %d, as follows", client)
        return app_error(error, own_message)


def _copied(content: RecordDict) -> RecordDict:
    """Return records of the client's own, with the same arrays: what it writes stays with it."""
    records: dict[str, Any] = dict(content.items())
    return RecordDict({name: type(record)(dict(record)) for name, record in records.items()})


def _addressed(metadata: Metadata, client: int) -> Metadata:
    return Metadata(
        run_id=metadata.run_id,
        message_id=f"{metadata.message_id}/{client}",
        src_node_id=metadata.src_node_id,
        dst_node_id=client,
        reply_to_message_id=metadata.reply_to_message_id,
        group_id=metadata.group_id,
        created_at=metadata.created_at,
        ttl=metadata.ttl,
        message_type=metadata.message_type,
    )
