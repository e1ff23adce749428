"""Replies one by one as they arrive, so that a cohort of any size fits a small server."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from flwr.app import ArrayRecord, Message

from flwr_sdp.records import records_of
from flwr_sdp.strategies.grid_view import GridView

_log = logging.getLogger("flwr")

# The requests of a round share one model, so a group of them costs no memory; it spares the
# remote grid from serialising that model once for every node.
_PUSHED_AT_ONCE = 32

# Replies do not share anything: pull as many at once as fit into this, and one at least.
_PULLED_BYTES = 2**20
_MAX_PULLED_AT_ONCE = 1000

_SHORTEST_WAIT, _LONGEST_WAIT = 0.02, 3.0


class StreamingGrid(GridView):
    """A view of a grid whose ``send_and_receive`` yields each reply as it arrives, and keeps none.

    Flower's grids return the list of all replies: a hundred of 13 MB are 1.3 GB before the
    first is looked at. Here a reply is pulled, handed over and forgotten, so that whoever folds it
    in at once needs the memory of one, whatever the cohort.

    Nothing is sent before the first reply is asked for. Replies that come after the timeout are
    never pulled. The view uses nothing of the grid but ``push_messages`` and ``pull_messages``,
    and so works with Flower's in-memory and remote grids alike.
    """

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Send messages, and yield the replies in the order of their arrival.

        `timeout` is in seconds from the first reply asked for; None waits for all of them.
        """
        unsent = deque(messages)
        # A strategy may ask whether there are replies: an iterator always says yes.
        return self._stream(unsent, timeout) if unsent else []

    def _stream(self, unsent: deque[Message], timeout: float | None) -> Iterator[Message]:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        asked, at_once = len(unsent), _pulled_at_once(unsent[0])
        undelivered = 0
        waiting: dict[str, None] = {}  # in the order in which they were sent
        while unsent and time.monotonic() < deadline:
            group = [unsent.popleft() for _ in range(min(_PUSHED_AT_ONCE, len(unsent)))]
            message_ids = [message_id for message_id in self.push_messages(group) if message_id]
            undelivered += len(group) - len(message_ids)
            waiting.update(dict.fromkeys(message_ids))
        last_arrival = time.monotonic()
        while waiting and time.monotonic() < deadline:
            swept_at = time.monotonic()
            for message_ids in _groups(waiting, at_once):
                if time.monotonic() >= deadline:
                    break
                replies = deque(self.pull_messages(message_ids))
                while replies:
                    waiting.pop(replies[0].metadata.reply_to_message_id, None)
                    # Not by name: the frame of a generator would keep it while the next is pulled.
                    yield replies.popleft()
                    last_arrival = time.monotonic()
            if waiting:
                # A fiftieth of the time spent waiting is not felt; half of it is left to others.
                now = time.monotonic()
                pause = max(_SHORTEST_WAIT, 0.02 * (now - last_arrival), now - swept_at)
                time.sleep(max(0.0, min(pause, _LONGEST_WAIT, deadline - now)))
        if undelivered:
            _log.warning("%d of %d messages could not be delivered", undelivered, asked)
        if waiting or unsent:
            _log.warning(
                "%d of %d nodes had not replied within timeout=%g s, and are not waited for "
                "(timeout is an argument of strategy.start)",
                len(waiting) + len(unsent),
                asked,
                timeout,
            )


def _pulled_at_once(request: Message) -> int:
    """Return how many replies may be held at once, each taken to be as large as its request."""
    records = records_of(request.content, ArrayRecord)
    size = sum(len(array.data) for record in records for array in record.values())
    return max(1, min(_PULLED_BYTES // max(size, 1), _MAX_PULLED_AT_ONCE))


def _groups(waiting: dict[str, None], size: int) -> Iterator[list[str]]:
    """Yield the ids in groups; those answered in the meantime do not come again."""
    message_ids = iter(tuple(waiting))
    while group := list(islice(message_ids, size)):
        yield group
