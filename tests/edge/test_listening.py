"""The sockets on which the ext_proc port and the admin port listen."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.edge.listening import CannotListen, Listener


@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("unix:{}/none/x.sock", "No such file or directory"),
        (f"unix:/{'x' * 200}", "AF_UNIX path too long"),
        ("192.0.2.1:0", "Cannot assign requested address"),
    ],
)
async def test_error_has_the_cause(address: str, why: str, tmp_path: Path) -> None:
    address = address.format(tmp_path)
    with pytest.raises(CannotListen) as refused:
        Listener(address, lambda _: None)
    assert why in str(refused.value)


async def test_socket_file_without_a_process_is_replaced(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/x.sock"
    for _ in range(2):
        listener = Listener(address, lambda _: None)
        with pytest.raises(CannotListen, match="Address already in use"):
            Listener(address, lambda _: None)
        await listener.close()


async def test_other_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("kept")
    with pytest.raises(CannotListen, match="Address already in use"):
        Listener(f"unix:{tmp_path}/x", lambda _: None)
    assert (tmp_path / "x").read_text() == "kept"
