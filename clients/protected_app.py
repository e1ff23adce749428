"""A ClientApp whose every function is behind the mod."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_sdp.clients.mod import ClientAppCallable, SeparatedDPMod


class _ProtectedClientApp(ClientApp):
    """An app that hands every message to the mod, and the mod the inner app."""

    def __init__(self, app: ClientApp, mod: SeparatedDPMod) -> None:
        super().__init__()
        self._app, self._mod = app, mod

    def __call__(self, message: Message, context: Context) -> Message:
        return self._mod(message, context, self._app)

    # What is registered from now on goes to the inner app, and so stays behind the mod.
    def train(
        self, action: str = "default", *, mods: Any = None
    ) -> Callable[[ClientAppCallable], ClientAppCallable]:
        return self._app.train(action, mods=mods)

    def evaluate(
        self, action: str = "default", *, mods: Any = None
    ) -> Callable[[ClientAppCallable], ClientAppCallable]:
        return self._app.evaluate(action, mods=mods)

    def query(
        self, action: str = "default", *, mods: Any = None
    ) -> Callable[[ClientAppCallable], ClientAppCallable]:
        return self._app.query(action, mods=mods)

    def lifespan(
        self,
    ) -> Callable[[Callable[[Context], Iterator[None]]], Callable[[Context], Iterator[None]]]:
        return self._app.lifespan()
