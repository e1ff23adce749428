"""A whole ClientApp behind the mod: no function of it is reached in any other way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp

    from flwr_sdp.clients.mod import SeparatedDPMod


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
    >>> from flwr.clientapp import ClientApp
    >>> from flwr_sdp import SeparatedBudget
    >>> budget = SeparatedBudget(epsilon_direction=500.0, epsilon_magnitude=10.0)
    >>> app = protect(ClientApp(), budget=budget, max_norm=5.0)
    """
    # Here, since `flwr_sdp.clients` does without Flower. (It cannot import this function when it is
    # asked for: the module of the same name would be in its place.)
    from flwr.clientapp import ClientApp

    from flwr_sdp.clients.mod import SeparatedDPMod
    from flwr_sdp.clients.protected_app import _ProtectedClientApp

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
