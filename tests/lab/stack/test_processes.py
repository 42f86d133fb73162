from __future__ import annotations

import socket

import pytest

from extproc.lab.stack.processes import free_port


class TestFreePort:
    def test_has_no_listener(self) -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", free_port()))

    def test_is_not_assigned_to_others(self) -> None:
        # Without SO_REUSEADDR, a port in TIME_WAIT cannot be bound.
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", free_port()))

    def test_accepts_a_listener(self) -> None:
        port = free_port()
        for _ in range(2):
            with socket.create_server(("127.0.0.1", port)):
                socket.create_connection(("127.0.0.1", port)).close()
