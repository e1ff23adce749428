"""What the mod remembers in a Flower context: which messages were answered, what the log was told.

Flower keeps a context's state on the node, from message to message; the process may be another one.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from secrets import token_hex
from typing import Any

from flwr.app import ConfigRecord, Context

from flwr_sdp.clients.ledger import ReplyForgotten, Request

_NAME = "flwr-sdp"
_TOKEN, _ANSWERED, _LOGGED = "token", "answered", "logged"

# The last replies of this process, by context and message. They are bounded, since a process may
# serve thousands of virtual clients and a reply is as large as the model: the newest is kept until
# the next message, whatever its size, and others as far as there is room.
_last: dict[tuple[Any, bytes], Sequence[bytes]] = {}
_ROOM = 2**26  # bytes
_lock = threading.Lock()


def _forget(keep: int) -> None:
    """Forget the oldest replies beyond the room there is, but not the `keep` newest ones."""
    sizes = {key: sum(map(len, reply)) for key, reply in _last.items()}
    for key in list(sizes)[: max(len(sizes) - keep, 0)]:
        if sum(sizes.values()) <= _ROOM:
            break
        del _last[key], sizes[key]


class ContextMemory:
    """The memory of one context; without a ledger it stands in for one.

    The same message delivered again gets the same bytes while this process has its reply (64 MiB of
    them, or the last one), and an error from then on: never a second report. It counts nothing and
    knows no cap, and a message that is delivered to two processes at once is answered by both.

    Parameters
    ----------
    context : Context
        Its state gets a small record, which :meth:`unseen` hides from the app.
    """

    def __init__(self, context: Context) -> None:
        # On the context too, so that it outlives whatever an app does to the state.
        record = vars(context).get(_NAME) or context.state.get(_NAME)
        if not isinstance(record, ConfigRecord):
            record = ConfigRecord({_TOKEN: token_hex(16)})
        vars(context)[_NAME] = context.state[_NAME] = record
        self._record = record

    @staticmethod
    @contextmanager
    def unseen(context: Context) -> Iterator[None]:
        """Let an app run that neither sees nor loses the record, and changes nothing of the node's.

        Flower hands a node config that an app has changed to the messages that follow.
        """
        run_id, node_id, node_config = context.run_id, context.node_id, dict(context.node_config)
        record = context.state.pop(_NAME, None)
        try:
            yield
        finally:
            context.run_id, context.node_id, context.node_config = run_id, node_id, node_config
            if record is not None:
                context.state[_NAME] = record

    def is_news(self, line: str) -> bool:
        """Return whether the log was not told `line` before, which it is now."""
        is_news = self._record.get(_LOGGED) != line
        self._record[_LOGGED] = line
        return is_news

    # ------------------------------------------------------------------ as a ledger
    def reply(self, request: Request) -> bytes | None:
        """Return the reply that was kept for a message, or None if it has not been answered.

        Raises
        ------
        ReplyForgotten
            If it was answered, and the reply is not kept.
        """
        with _lock:
            if (earlier := self._earlier(request)) is None:
                _forget(keep=0)  # the next reply takes its place, and needs the memory until then
            return earlier

    def check(self, *_: Any, **__: Any) -> None:
        """Do nothing: there is no cap."""

    def room(self, _size: int) -> nullcontext[None]:
        """Reserve nothing."""
        return nullcontext()

    def charge(
        self, request: Request, _event: Any, reply: Sequence[bytes], **_: Any
    ) -> bytes | None:
        """Keep a reply; return the one to send in its place, if there has been one meanwhile."""
        with _lock:
            if (earlier := self._earlier(request)) is not None:
                return earlier
            if request.message_id:
                _last[self._key(request)] = reply
                _forget(keep=1)
                self._record[_ANSWERED] = [*self._answered, _digest(request)]
        return None

    @property
    def _answered(self) -> list[Any]:
        answered = self._record.get(_ANSWERED, [])
        return answered if isinstance(answered, list) else []

    def _earlier(self, request: Request) -> bytes | None:
        reply = _last.get(self._key(request))  # first: a copy of the context has not all answers
        if reply is None and _digest(request) not in self._answered:
            return None
        if reply is None:
            raise ReplyForgotten(
                f"message {request.message_id} was answered before, and without a ledger "
                "(sdp-ledger) its reply is not kept: a second report would tell more than was asked"
            )
        return b"".join(reply)

    def _key(self, request: Request) -> tuple[Any, bytes]:
        return self._record[_TOKEN], _digest(request)


def _digest(request: Request) -> bytes:
    """Return a short name of a message; one for each stays in the state."""
    parts = (request.data_set, request.run_id, request.message_id)
    return blake2b(repr(parts).encode(), digest_size=16).digest()
