"""A grid that runs the clients in the server's own process, one after the other.

The same ServerApp and ClientApp as on Ray or in a deployment, without processes or ports: for
tests, debugging and small sweeps.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

_APP_RAISED = 2  # Flower's code for a ClientApp that raised


def app_error(error: Exception, message: Message) -> Message:
    """Return what a SuperNode answers for an app that raises."""
    return Message(Error(_APP_RAISED, f"{type(error)}:<'{error}'>"), reply_to=message)


class LocalGrid(Grid):
    """`num_nodes` clients of `client_app`, in this process.

    Parameters
    ----------
    client_app : ClientApp
        The app every node runs.
    num_nodes : int
        Number of nodes; node ``i + 1`` holds partition ``i``.
    run_config : mapping
        The run config the clients see.
    """

    def __init__(
        self, client_app: ClientApp, num_nodes: int, run_config: Mapping[str, Any]
    ) -> None:
        self._app = client_app
        self._requests: dict[str, Message] = {}
        self._contexts = {
            partition + 1: Context(
                run_id=1,
                node_id=partition + 1,
                node_config={"partition-id": partition, "num-partitions": num_nodes},
                state=RecordDict(),
                run_config=dict(run_config),
            )
            for partition in range(num_nodes)
        }

    @property
    def run(self) -> Any:
        """Not a run of Flower's."""
        raise NotImplementedError("a LocalGrid belongs to no run")

    def set_run(self, run: Any) -> None:
        """Not a run of Flower's."""
        raise NotImplementedError("a LocalGrid belongs to no run")

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """Create a message (deprecated in Flower)."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """Return the nodes, in the order of their partitions."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Take messages to their nodes, which run them when the replies are pulled."""
        message_ids = []
        for message in messages:
            message_id = str(uuid4())
            message.metadata.__dict__["_message_id"] = message_id
            self._requests[message_id] = message
            message_ids.append(message_id)
        return message_ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Run the messages that have not been answered yet at their nodes; return the replies."""
        # Copies, as over a network: what a client does to its message stays with the client.
        return [
            self._run_node(deepcopy(self._requests.pop(message_id)))
            for message_id in message_ids
            if message_id in self._requests
        ]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run each message at its node and yield the replies one by one."""
        for message in messages:
            yield from self.pull_messages(self.push_messages([message]))

    def _run_node(self, message: Message) -> Message:
        try:
            return self._app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            traceback.print_exc()
            return app_error(error, message)
