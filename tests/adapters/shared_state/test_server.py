"""The URL and the credentials of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from extproc.adapters.shared_state.server import TIMEOUT_SECONDS, SharedStateServer


def server(url: str, password_file: Path | None = None) -> SharedStateServer:
    return SharedStateServer(url, "extproc", password_file)


def connection(server: SharedStateServer) -> Any:
    """Return a connection, whose attributes have no types."""
    return server.connection()


class TestText:
    @pytest.mark.parametrize(
        ("url", "shown"),
        [
            ("redis://valkey:6379/2", "redis://valkey:6379/2"),
            ("redis://user:secret@valkey:6379", "redis://valkey:6379"),
            ("redis://:secret@valkey/0?socket_timeout=1", "redis://valkey/0"),
            ("redis://u:p%40ss@[fd00::1]:6379/0", "redis://[fd00::1]:6379/0"),
            ("rediss://u:secret@v:1?ssl_keyfile=secret", "rediss://v:1"),
            ("unix://user:secret@/run/valkey.sock?password=secret", "unix:///run/valkey.sock"),
        ],
    )
    def test_has_no_credentials_and_no_options(self, url: str, shown: str) -> None:
        assert str(server(url)) == shown


class TestCheck:
    @pytest.mark.parametrize(
        "url",
        [
            "redis://valkey",
            "redis://user:secret@valkey:6380/3",
            "rediss://valkey:6379/0",
            "rediss://v?ssl_certfile=a&ssl_keyfile=b&ssl_ca_certs=c",
            "unix:///run/valkey.sock?db=2",
        ],
    )
    def test_accepts_what_the_client_accepts(self, url: str) -> None:
        server(url).check()

    @pytest.mark.parametrize(
        "url",
        [
            "redis://u:secret@v?unknown_option=1",
            "redis://u:secret@v?socket_keepalive_interval=x",
            "rediss://u:secret@v?ssl_cert_reqs=sometimes",
            "redis://u:secret@v?db=many",
        ],
    )
    def test_refuses_an_option_in_one_line_without_credentials(self, url: str) -> None:
        with pytest.raises(ValueError, match="v: ") as found:
            server(url).check()
        (line,) = str(found.value).splitlines()
        assert "secret" not in line
        assert line.startswith(str(server(url)))

    def test_does_not_need_the_password_file(self, tmp_path: Path) -> None:
        server("redis://valkey", tmp_path / "missing").check()


class TestConnection:
    def test_has_the_address_and_the_database(self) -> None:
        found = connection(server("redis://valkey:6380/3"))
        assert (found.host, found.port, found.db) == ("valkey", 6380, 3)

    def test_has_a_short_limit_to_connect_and_none_for_each_command(self) -> None:
        found = connection(server("redis://valkey"))
        assert found.socket_connect_timeout == TIMEOUT_SECONDS
        assert found.socket_timeout is None

    def test_reads_the_password_from_the_file_each_time(self, tmp_path: Path) -> None:
        path = tmp_path / "password"
        known = server("redis://user@valkey", path)
        for password in ("first", "second"):
            path.write_text(f"{password}\n")
            found = connection(known)
            assert (found.username, found.password) == ("user", password)

    def test_prefers_the_file_to_the_url(self, tmp_path: Path) -> None:
        path = tmp_path / "password"
        path.write_text("from the file")
        found = connection(server("redis://:from-the-url@valkey", path))
        assert found.password == "from the file"

    @pytest.mark.parametrize("content", [None, b"\xff\xfe"])
    def test_with_an_unusable_file_is_an_os_error(
        self, tmp_path: Path, content: bytes | None
    ) -> None:
        path = tmp_path / "password"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(OSError, match="password"):
            server("redis://valkey", path).connection()
