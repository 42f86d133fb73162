"""A Valkey that fails: sidecars continue with what they know, and agree when it is back."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from extproc.core.sharing import journal
from extproc.lab.stack.processes import until
from extproc.lab.stack.valkey import Valkey
from tests.adapters.shared_state.linked import KEY, Linked, linked, server_of
from tests.core.sharing.sidecars import A, B, request
from tests.extent import PATIENCE

UNAVAILABLE = "shared state unavailable"
CONNECTED = "shared state connected"


@pytest.fixture
async def pair(own_valkey: Valkey) -> AsyncIterator[list[Linked]]:
    """Two sidecars that know each other's request on A."""
    async with linked(server_of(own_valkey)) as sidecars:
        for one in sidecars:
            one.sends(A)
        for one in sidecars:
            await one.has({A: 2})
        yield sidecars


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "extproc.shared_state")
    return caplog


def lines(log: pytest.LogCaptureFixture, message: str) -> int:
    return sum(record.message == message for record in log.records)


async def agree_again(sidecars: list[Linked]) -> None:
    """Verify that each sidecar knows the requests of all, old and new."""
    leases = [one.sends(B) for one in sidecars]
    for one in sidecars:
        await one.connects()
        await one.has({A: len(sidecars), B: len(sidecars)})
    for lease in leases:
        lease.release()
    for one in sidecars:
        await one.has({A: len(sidecars)})


async def attempts(sidecar: Linked, number: int) -> None:
    """Wait for a number of connections that fail."""
    made = 0
    connection = type(sidecar.link._server).connection

    def counting(server: object) -> object:
        nonlocal made
        made += 1
        return connection(server)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(sidecar.link._server), "connection", counting)
        await until(lambda: made >= number, PATIENCE, f"{number} connections")


async def test_killed_server_leaves_each_sidecar_with_its_own_requests(
    pair: list[Linked], own_valkey: Valkey
) -> None:
    await own_valkey.kill()
    for one in pair:
        one.sends(B)
        assert one.loads()[B] == 1
    for one in pair:
        await one.disconnects()
        await one.has({A: 1, B: 1})
        assert one.metric("peers") == 0


async def test_outage_is_one_log_line(
    pair: list[Linked], own_valkey: Valkey, log: pytest.LogCaptureFixture
) -> None:
    await own_valkey.kill()
    for one in pair:
        await one.disconnects()
    await attempts(pair[0], 5)
    assert lines(log, UNAVAILABLE) == 2
    (first, _) = (record for record in log.records if record.message == UNAVAILABLE)
    fields = vars(first)["fields"]
    assert fields["server"] == own_valkey.url
    assert fields["error"]
    await own_valkey.start()
    await agree_again(pair)
    assert lines(log, CONNECTED) == 2
    await own_valkey.kill()
    for one in pair:
        await one.disconnects()
    assert lines(log, UNAVAILABLE) == 4


async def test_unexpected_error_is_logged_with_its_traceback_and_ends_nothing(
    pair: list[Linked], log: pytest.LogCaptureFixture
) -> None:
    one, other = pair
    failing = MagicMock(wraps=one.link._peers)
    failing.expire.side_effect = KeyError("a bug")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(one.link, "_peers", failing)
        await one.disconnects()
    (found,) = (record for record in log.records if record.message == UNAVAILABLE)
    assert found.exc_info is not None
    await agree_again([one, other])


@pytest.mark.parametrize("times", [1, 3])
async def test_restarted_server_without_data_makes_them_agree_again(
    pair: list[Linked], own_valkey: Valkey, times: int
) -> None:
    for _ in range(times):
        await own_valkey.restart()
        await agree_again(pair)


async def test_requests_that_end_while_the_server_is_away_are_not_counted_later(
    pair: list[Linked], own_valkey: Valkey
) -> None:
    here, peer = pair
    ended = peer.sends(B)
    await here.has({A: 2, B: 1})
    await own_valkey.kill()
    await here.disconnects()
    ended.release()
    peer.sends(B).release()
    await own_valkey.start()
    await here.connects()
    await here.has({A: 2})


async def test_prompts_that_are_sent_while_the_server_is_away_are_known_later(
    pair: list[Linked], own_valkey: Valkey
) -> None:
    here, peer = pair
    await own_valkey.kill()
    await peer.disconnects()
    peer.sends(B, request("sent", "meanwhile"))
    await own_valkey.start()
    await here.has({A: 2, B: 1})
    assert here.matches("sent", "meanwhile") == {B: 2}


async def test_frozen_server_is_left_and_used_again(
    pair: list[Linked], own_valkey: Valkey, log: pytest.LogCaptureFixture
) -> None:
    own_valkey.freeze()
    for one in pair:
        one.sends(B).release()
    for one in pair:
        await one.disconnects()
        await one.has({A: 1})
    assert lines(log, UNAVAILABLE) == 2
    own_valkey.thaw()
    await agree_again(pair)


async def test_flushed_server_makes_no_difference(
    pair: list[Linked], own_valkey: Valkey, log: pytest.LogCaptureFixture
) -> None:
    for _ in range(5):
        await own_valkey.call("FLUSHALL")
        await agree_again(pair)
    assert lines(log, UNAVAILABLE) == 0


async def test_key_of_another_type_is_an_outage_until_it_is_removed(
    pair: list[Linked], own_valkey: Valkey, log: pytest.LogCaptureFixture
) -> None:
    await own_valkey.call("SET", KEY, "mine")
    for one in pair:
        await one.disconnects()
    await attempts(pair[0], 4)
    assert lines(log, UNAVAILABLE) == 2
    await own_valkey.call("DEL", KEY)
    await agree_again(pair)


async def test_full_server_is_an_outage_until_it_has_room(
    pair: list[Linked], own_valkey: Valkey, log: pytest.LogCaptureFixture
) -> None:
    await own_valkey.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    await own_valkey.call("CONFIG", "SET", "maxmemory", "1")
    for one in pair:
        await one.disconnects()
        one.sends(B)
    await attempts(pair[0], 4)
    assert lines(log, UNAVAILABLE) == 2
    assert lines(log, CONNECTED) == 0
    await own_valkey.call("CONFIG", "SET", "maxmemory", "0")
    for one in pair:
        await one.has({A: 2, B: 2})


async def test_read_only_server_is_an_outage_until_it_is_promoted(
    pair: list[Linked], own_valkey: Valkey
) -> None:
    await own_valkey.call("REPLICAOF", "127.0.0.1", "1")
    for one in pair:
        await one.disconnects()
    await own_valkey.call("REPLICAOF", "NO", "ONE")
    await agree_again(pair)


class TestCredentials:
    @pytest.fixture
    def password(self, tmp_path: Path) -> Path:
        path = tmp_path / "password"
        path.write_text("first\n")
        return path

    @pytest.fixture
    async def pair(self, own_valkey: Valkey, password: Path) -> AsyncIterator[list[Linked]]:
        await self.change(own_valkey, "first")
        async with linked(server_of(own_valkey, KEY, password)) as sidecars:
            for one in sidecars:
                one.sends(A)
            for one in sidecars:
                await one.has({A: 2})
            yield sidecars

    async def change(self, valkey: Valkey, password: str) -> None:
        """Change the password, and end all connections."""
        await valkey.call("CONFIG", "SET", "requirepass", password)
        valkey.password = password
        await valkey.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

    async def test_that_change_are_read_from_the_file(
        self, pair: list[Linked], own_valkey: Valkey, password: Path, log: pytest.LogCaptureFixture
    ) -> None:
        await self.change(own_valkey, "second")
        for one in pair:
            await one.disconnects()
        await attempts(pair[0], 3)
        assert lines(log, UNAVAILABLE) == 2
        password.write_text("second")
        await agree_again(pair)

    async def test_are_not_logged(
        self, pair: list[Linked], own_valkey: Valkey, log: pytest.LogCaptureFixture
    ) -> None:
        await self.change(own_valkey, "second")
        await pair[0].disconnects()
        assert "first" not in " ".join(str(vars(record)) for record in log.records)

    @pytest.mark.parametrize("content", [None, b"\xff\xfe"])
    async def test_in_an_unusable_file_are_an_outage(
        self,
        pair: list[Linked],
        own_valkey: Valkey,
        password: Path,
        content: bytes | None,
        log: pytest.LogCaptureFixture,
    ) -> None:
        if content is None:
            password.unlink()
        else:
            password.write_bytes(content)
        await self.change(own_valkey, "first")
        for one in pair:
            await one.disconnects()
        await attempts(pair[0], 3)
        assert lines(log, UNAVAILABLE) == 2
        password.write_text("first")
        await agree_again(pair)


class TestGarbage:
    """Entries that others wrote under our key."""

    @pytest.mark.parametrize(
        "garbage", [b"", b"garbage", b"\xff" * 1000, b"\x9d\x01\xa1\xff", b"\x91" * 100_000]
    )
    async def test_is_counted_and_ignored(
        self, pair: list[Linked], own_valkey: Valkey, garbage: bytes, log: pytest.LogCaptureFixture
    ) -> None:
        await own_valkey.call("XADD", KEY, "*", "o", "stranger", "b", garbage)
        for one in pair:
            await until(
                lambda one=one: one.metric("messages_total", direction="unreadable") == 1,  # type: ignore[misc]
                PATIENCE,
                "the garbage",
            )
        await agree_again(pair)
        assert lines(log, UNAVAILABLE) == 0

    @pytest.mark.parametrize(
        "fields",
        [("x", "y"), ("o", "stranger"), ("b", "x", "o", "y"), ("o", "s", "b", "x", "c", "y")],
    )
    async def test_with_other_fields_is_ignored(
        self, pair: list[Linked], own_valkey: Valkey, fields: tuple[str, ...]
    ) -> None:
        await own_valkey.call("XADD", KEY, "*", *fields)
        await agree_again(pair)

    async def test_of_many_entries_is_read_to_its_end(
        self, pair: list[Linked], own_valkey: Valkey
    ) -> None:
        add = f"redis.call('XADD', '{KEY}', '*', 'o', 'stranger', 'b', 'x')"
        await own_valkey.call("EVAL", f"for _ = 1, 1200 do {add} end", 0)
        await agree_again(pair)


class TestClockOfServer:
    """The clock in the ids of entries. It may go back after a failover to another server."""

    FUTURE = "99999999999999-0"

    async def test_may_go_back_with_the_loss_of_the_data(
        self, pair: list[Linked], own_valkey: Valkey
    ) -> None:
        await own_valkey.call("XADD", KEY, self.FUTURE, "x", "y")
        for one in pair:
            await until(
                lambda one=one: (one.link._position or (0, 0))[0] == 99999999999999,  # type: ignore[misc]
                PATIENCE,
                "the position",
            )
        await own_valkey.call("DEL", KEY)
        await agree_again(pair)

    async def test_may_go_back_with_the_data(self, pair: list[Linked], own_valkey: Valkey) -> None:
        await own_valkey.call("XADD", KEY, self.FUTURE, "x", "y")
        await agree_again(pair)
        async with linked(server_of(own_valkey), 1) as (late,):
            await late.has({A: 2})

    async def test_may_go_back_between_two_connections(
        self, pair: list[Linked], own_valkey: Valkey
    ) -> None:
        await own_valkey.call("XADD", KEY, self.FUTURE, "x", "y")
        await asyncio.sleep(0.1)
        await own_valkey.restart()
        await agree_again(pair)


async def test_reports_are_bounded_while_the_server_is_away(
    pair: list[Linked], own_valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 2_000
    monkeypatch.setattr(journal, "MOST_BLOCKS", most)
    here, peer = pair
    await own_valkey.kill()
    await peer.disconnects()
    before = peer.metric("bytes_total", direction="out")
    for number in range(2_000):
        peer.sends(B, request(*(f"{number} {block}" for block in range(20)))).release()
        if number % 100 == 0:
            await asyncio.sleep(0)
    await own_valkey.start()
    await here.has({A: 2})
    await until(lambda: peer.metric("bytes_total", direction="out") > before, PATIENCE, "a report")
    # The batch that was not written, and the journal, each with its events.
    assert peer.metric("bytes_total", direction="out") - before < 2 * 8 * most + 50_000
