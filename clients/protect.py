"""A whole ClientApp behind the mod: no function of it is reached in any other way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flwr_sdp.clients.mod import ClientAppCallable, SeparatedDPMod


def protect(app: ClientApp, mod: SeparatedDPMod | None = None, **settings: Any) -> ClientApp:
    """Return `app` with everything it does behind one :class:`SeparatedDPMod`.

    A mod given to ``ClientApp(mods=...)`` or to a train function protects what it is attached to.
    Here nothing can be forgotten: functions registered before or after, legacy ``client_fn``,
    other mods, messages without a function, and Flower's lifespan function, whose exceptions would
    otherwise go to the server with their text. Arrays leave in replies to train messages alone.
    **Read no data where the app is imported**: what fails there, Flower tells the server with its
    text, before there is any app to protect.

    Parameters
    ----------
    app : ClientApp
        Any app. It goes on to work as it did when it is called itself.
    mod : SeparatedDPMod, optional
        By default ``SeparatedDPMod(**settings)``.

    Returns
    -------
    ClientApp
        What to name in ``pyproject.toml`` as ``clientapp``.

    Raises
    ------
    ValueError
        If `app` is not a ClientApp, is protected already, or both `mod` and settings are given.

    Notes
    -----
    **Privacy.** That of :class:`SeparatedDPMod`, for every message the app is sent. Code of the app
    can still open a connection of its own: this is a guard against mistakes, not a sandbox.

    Examples
    --------
    >>> from flwr_sdp import SeparatedBudget
    >>> budget = SeparatedBudget(epsilon_direction=500.0, epsilon_magnitude=10.0)
    >>> app = protect(ClientApp(), budget=budget, max_norm=5.0)
    """
    if not isinstance(app, ClientApp):
        raise ValueError(f"app must be a flwr ClientApp; got {app!r}")
    if isinstance(app, _ProtectedClientApp):
        raise ValueError("app must not be protected already: a second mod would add noise to noise")
    if mod is None:
        mod = SeparatedDPMod(**settings)
    elif settings:
        raise ValueError(f"mod must be left out when settings are given; got {sorted(settings)}")
    if not isinstance(mod, SeparatedDPMod):
        raise ValueError(f"mod must be a SeparatedDPMod; got {mod!r}")
    return _ProtectedClientApp(app, mod)


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
