from __future__ import annotations

import socket

import pytest

from extproc.lab.stack.processes import free_port


class TestAFreePort:
    def test_has_nobody_listening(self) -> None:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", free_port()))

    def test_is_kept_from_those_who_take_any(self) -> None:
        # As for those, without SO_REUSEADDR a port in TIME_WAIT is taken.
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", free_port()))

    def test_can_be_listened_on(self) -> None:
        port = free_port()
        for _ in range(2):
            with socket.create_server(("127.0.0.1", port)):
                socket.create_connection(("127.0.0.1", port)).close()
