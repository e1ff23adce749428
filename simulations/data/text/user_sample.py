"""The texts of so many users, while they stream by."""

from __future__ import annotations

import heapq
from hashlib import blake2b

from flwr_sdp import _validate

_KEY = b"flwr-sdp users"


class UserSample:
    """Texts by user, of all users or of a random sample of them.

    The sample is that of the smallest hashes, so that the same users are in it whatever the order
    in which the texts come, and at no time more than `max_users` are kept.

    Parameters
    ----------
    max_users : int or None
        Users to keep; None for all.
    """

    def __init__(self, max_users: int | None = None) -> None:
        if max_users is not None:
            _validate.integer("max_users", max_users, minimum=1)
        self._max_users = max_users
        self._texts: dict[str, list[str]] = {}
        self._last: list[tuple[int, str]] = []  # a heap: first who would go next

    def wants(self, user: str) -> bool:
        """Return whether a text of the user would be kept; if not, no later one would."""
        return (
            user in self._texts
            or self._max_users is None
            or len(self._texts) < self._max_users
            or _rank(user) > self._last[0]
        )

    def add(self, user: str, text: str) -> None:
        """Keep a text, if it is wanted; who has the largest hash makes room for a new user."""
        if not self.wants(user):
            return
        if user not in self._texts and self._max_users is not None:
            if len(self._texts) < self._max_users:
                heapq.heappush(self._last, _rank(user))
            else:
                _, out = heapq.heapreplace(self._last, _rank(user))
                del self._texts[out]
        self._texts.setdefault(user, []).append(text)

    def texts(self) -> list[tuple[str, list[str]]]:
        """Return the users by name, each with all texts in the order in which they came."""
        return sorted(self._texts.items())


def _rank(user: str) -> tuple[int, str]:
    """Return what is lowest for the user of the largest hash."""
    digest = blake2b(user.encode(), digest_size=16, key=_KEY).digest()
    return -int.from_bytes(digest, "big"), user
