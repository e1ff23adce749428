"""Every task works with the network off."""

import socket

import pytest


@pytest.fixture(autouse=True)
def _network_is_off(monkeypatch):
    def refuse(self, address):
        raise AssertionError(f"a task asked the network for {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)
