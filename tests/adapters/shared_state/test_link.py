"""Sidecars that share their requests through a real Valkey."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from unittest.mock import AsyncMock

import pytest

from extproc.adapters.shared_state.codec import decode_batch
from extproc.adapters.shared_state.link import HELD_SECONDS
from extproc.adapters.shared_state.server import SharedStateServer
from extproc.adapters.shared_state.stream import BatchStream
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.outcome import Outcome
from extproc.core.sharing import peers
from extproc.core.sharing.batch import SENT_AGO, Batch
from extproc.lab.stack.processes import free_port, until
from extproc.lab.stack.valkey import Valkey
from tests.adapters.shared_state.linked import KEY, Linked, linked, server_of
from tests.core.clock import Clock
from tests.core.sharing.sidecars import ADDRESSES, MODEL, A, B, request
from tests.extent import PATIENCE


def has_written(sidecar: Linked) -> bool:
    return sidecar.metric("messages_total", direction="out") > 1


class TestRequests:
    async def test_count_at_all_sidecars_until_they_end(self, valkey: Valkey) -> None:
        async with linked(server_of(valkey), 3) as sidecars:
            leases = [one.sends(A) for one in sidecars]
            for one in sidecars:
                await one.has({A: 3})
            leases[0].release()
            leases[1].move(Endpoint(B, B))
            for one in sidecars:
                await one.has({A: 1, B: 1})
            leases[1].release()
            leases[2].release()
            for one in sidecars:
                await one.has({})

    async def test_fill_the_index_and_the_adapters_of_others(self, valkey: Valkey) -> None:
        async with linked(server_of(valkey)) as (here, peer):
            peer.sends(B, request("x", "y", adapter="sql"))
            await here.has({B: 1})
            assert here.matches("x", "y", "z") == {B: 2}
            assert list(here.fleet.signals.residency.loaded(B)) == ["sql"]

    async def test_count_among_clocks_that_differ(self, valkey: Valkey) -> None:
        clocks = [monotonic, lambda: monotonic() + 1e6, lambda: monotonic() - 50]
        async with linked(server_of(valkey), clocks=clocks) as sidecars:
            for one in sidecars:
                one.sends(A)
            for one in sidecars:
                await one.has({A: 3})
                assert max(peer["age_seconds"] for peer in one.link.document()["peers"]) < 1e3

    async def test_are_known_when_a_later_sidecar_starts(self, valkey: Valkey) -> None:
        async with linked(server_of(valkey)) as (first, second):
            for one in (first, second):
                one.sends(A, request("x", "y"))
            await first.has({A: 2})
            await second.has({A: 2})
            async with linked(server_of(valkey), 1) as (late,):
                assert late.matches("x", "y") == {A: 2}
                await late.has({A: 2})

    async def test_leave_with_a_sidecar_that_stops(
        self, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(peers, "SILENT_SECONDS", 10 * PATIENCE)
        async with linked(server_of(valkey), 1) as (here,):
            async with linked(server_of(valkey), 1) as (peer,):
                peer.sends(A)
                await here.has({A: 1})
            await here.has({})
            assert here.link.document()["peers"] == []

    async def test_leave_with_a_sidecar_that_dies(self, valkey: Valkey) -> None:
        async with linked(server_of(valkey)) as (here, peer):
            peer.sends(A)
            await here.has({A: 1})
            assert peer.link._task is not None
            peer.link._task.cancel()
            await here.has({})

    async def test_reach_others_through_a_unix_socket(self, tmp_path: Path) -> None:
        valkey = Valkey(tmp_path, unix_socket=True)
        try:
            await valkey.start()
            async with linked(server_of(valkey)) as (here, peer):
                peer.sends(A)
                await here.has({A: 1})
        finally:
            await valkey.kill()

    async def test_of_other_keys_and_databases_do_not_mix(self, valkey: Valkey) -> None:
        servers = [
            server_of(valkey),
            server_of(valkey, "other"),
            SharedStateServer(valkey.url.replace("/0", "/1"), KEY),
        ]
        async with linked(servers[0]) as (here, peer):
            for server in servers[1:]:
                async with linked(server, 1) as (stranger,):
                    stranger.sends(B, request("strange"))
                    peer.sends(A)
                    await until(partial(has_written, stranger), PATIENCE, "messages")
                    assert stranger.link.document()["peers"] == []
                    assert B not in here.loads()
                    assert here.matches("strange") == {}

    async def test_that_come_one_after_another_are_all_counted(self, valkey: Valkey) -> None:
        async with linked(server_of(valkey), 4) as sidecars:
            leases = []
            for number in range(100):
                leases.append(sidecars[number % 4].sends(ADDRESSES[number % 3]))
                await asyncio.sleep(0.002)
            for one in sidecars:
                await one.has({ADDRESSES[0]: 34, ADDRESSES[1]: 33, ADDRESSES[2]: 33})
            for lease in leases:
                lease.release()
            for one in sidecars:
                await one.has({})


async def test_ejections_hold_at_all_sidecars(valkey: Valkey) -> None:
    async with linked(server_of(valkey)) as (here, peer):
        for _ in range(3):
            peer.fleet.ejection.record(A, Outcome.RESET)
        await until(lambda: A in here.fleet.ejection.ejected, PATIENCE, "the ejection")


async def test_learned_token_sizes_reach_others(valkey: Valkey) -> None:
    async with linked(server_of(valkey)) as (here, peer):
        peer.fleet.signals.token_sizes.record(MODEL, 600, 100)
        learned = peer.fleet.signals.token_sizes.of(MODEL)
        await until(
            lambda: here.fleet.signals.token_sizes.of(MODEL) == learned, PATIENCE, "the token size"
        )


class TestBatchThatIsNotWritten:
    """A batch of a sidecar whose server does not take it at first."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    async def sidecar(self, clock: Clock) -> Linked:
        """Return a sidecar whose first batch, with one request, was refused."""
        sidecar = Linked(SharedStateServer("redis://127.0.0.1:1", KEY), clock)
        await self.written(sidecar)
        clock.advance(0.02)
        sidecar.sends(A, request("x"))
        refusing = self.stream()
        refusing.exchange.side_effect = ConnectionError
        with pytest.raises(ConnectionError):
            await sidecar.link._exchange(refusing)
        return sidecar

    def stream(self) -> AsyncMock:
        """Return an empty stream that takes batches."""
        stream = AsyncMock(BatchStream, last=(0, 0))
        stream.exchange.return_value = [], False
        return stream

    async def written(self, sidecar: Linked) -> Batch:
        """Exchange once, and return what the sidecar wrote."""
        stream = self.stream()
        await sidecar.link._exchange(stream)
        return decode_batch(stream.exchange.call_args[0][0])

    async def test_is_written_soon_after(self, sidecar: Linked, clock: Clock) -> None:
        clock.advance(0.1)
        sidecar.sends(B)
        assert [one[0] for one in (await self.written(sidecar)).sent] == [1]
        assert [one[0] for one in (await self.written(sidecar)).sent] == [2]

    async def test_is_followed_by_all_requests_in_flight(
        self, sidecar: Linked, clock: Clock
    ) -> None:
        clock.advance(HELD_SECONDS)
        assert (await self.written(sidecar)).held is None
        assert len((await self.written(sidecar)).held or ()) == 1

    async def test_is_replaced_by_a_complete_one_after_the_time_of_silence(
        self, sidecar: Linked, clock: Clock
    ) -> None:
        clock.advance(peers.SILENT_SECONDS + 0.1)
        sidecar.sends(B)
        batch = await self.written(sidecar)
        assert [(one[0], one[SENT_AGO]) for one in batch.sent] == [
            (1, pytest.approx(peers.SILENT_SECONDS + 0.1)),
            (2, 0),
        ]
        assert [one[0] for one in batch.held or ()] == [1, 2]


class TestDocument:
    async def test_has_the_connection_and_the_peers(self, valkey: Valkey) -> None:
        async with linked(server_of(valkey), 3) as (here, *others):
            others[0].sends(A)
            await here.has({A: 1})
            await until(lambda: here.metric("peers") == 2, PATIENCE, "two peers")
            document = here.link.document()
            assert document["connected"]
            assert {peer["id"] for peer in document["peers"]} == {
                other.link.document()["id"] for other in others
            }
            assert sorted(peer["inflight"] for peer in document["peers"]) == [0, 1]
            assert all(peer["age_seconds"] >= 0 for peer in document["peers"])
            assert document["lag_seconds"] > 0

    async def test_is_empty_before_the_start(self, valkey: Valkey) -> None:
        document = Linked(server_of(valkey)).link.document()
        assert (document["connected"], document["lag_seconds"], document["peers"]) == (False, 0, [])


class TestMetrics:
    async def test_count_messages_and_bytes(self, valkey: Valkey) -> None:
        async with linked(server_of(valkey)) as (here, peer):
            peer.sends(A, request(*"abcdefgh"))
            await here.has({A: 1})
            assert here.metric("messages_total", direction="in") > 0
            assert here.metric("bytes_total", direction="in") > 64
            assert peer.metric("messages_total", direction="out") > 0
            assert peer.metric("bytes_total", direction="out") > 64
            assert here.metric("messages_total", direction="unreadable") == 0

    async def test_have_the_lag_of_requests(self, valkey: Valkey) -> None:
        async with linked(server_of(valkey)) as (here, peer):
            assert here.metric("lag_seconds_count") == 0
            peer.sends(A)
            await here.has({A: 1})
            assert here.metric("lag_seconds_count") == 1
            assert 0 < here.metric("lag_seconds_sum") < PATIENCE


class TestStart:
    async def test_waits_for_an_absent_server_only_so_long(self) -> None:
        sidecar = Linked(SharedStateServer(f"redis://127.0.0.1:{free_port()}", KEY))
        await asyncio.wait_for(sidecar.link.start(0.1), PATIENCE)
        assert not sidecar.is_connected
        sidecar.sends(A)
        assert sidecar.loads() == {A: 1}
        await asyncio.wait_for(sidecar.link.close(), PATIENCE)

    async def test_connects_to_a_server_that_comes_later(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO, "extproc.shared_state")
        valkey = Valkey(tmp_path)
        here, peer = (Linked(server_of(valkey)) for _ in range(2))
        try:
            for one in (here, peer):
                await one.link.start(0.05)
                one.sends(A)
            await valkey.start()
            for one in (here, peer):
                await one.has({A: 2})
            assert [record.message for record in caplog.records] == [
                *["shared state unavailable"] * 2,
                *["shared state connected"] * 2,
            ]
        finally:
            for one in (here, peer):
                await one.link.close()
            await valkey.kill()


class TestClose:
    async def test_ends_the_connection(self, valkey: Valkey) -> None:
        async with linked(server_of(valkey)) as sidecars:
            assert b"name=extproc" in await valkey.call("CLIENT", "LIST")
        assert all(one.link._task is not None and one.link._task.done() for one in sidecars)

        async def closed() -> bool:
            return b"name=extproc" not in await valkey.call("CLIENT", "LIST")

        await until(closed, PATIENCE, "the connections to end")

    async def test_without_a_start_does_nothing(self, valkey: Valkey) -> None:
        await asyncio.wait_for(Linked(server_of(valkey)).link.close(), PATIENCE)

    async def test_ends_although_the_server_is_frozen(self, own_valkey: Valkey) -> None:
        async with linked(server_of(own_valkey)) as sidecars:
            own_valkey.freeze()
            for one in sidecars:
                one.sends(A)
                await asyncio.wait_for(one.link.close(), PATIENCE)

    async def test_ends_although_the_server_was_frozen_before_the_start(
        self, own_valkey: Valkey
    ) -> None:
        own_valkey.freeze()
        sidecar = Linked(server_of(own_valkey))
        await sidecar.link.start(0.05)
        await asyncio.wait_for(sidecar.link.close(), PATIENCE)

    async def test_ends_although_the_server_is_away(self, own_valkey: Valkey) -> None:
        async with linked(server_of(own_valkey)) as (here, _):
            await own_valkey.kill()
            await here.disconnects()
            await asyncio.wait_for(here.link.close(), PATIENCE)


class TestUserWithFewPermissions:
    """An ACL user that may only do what the sidecar needs."""

    RIGHTS = (
        "resetkeys ~extproc ~extproc:* -@all +auth +client|setname +client|setinfo +select "
        "+time +xadd +xread +xtrim +mget +set"
    )

    async def test_suffices(self, own_valkey: Valkey, tmp_path: Path) -> None:
        await own_valkey.call("ACL", "SETUSER", "sidecar", "on", ">secret", *self.RIGHTS.split())
        password = tmp_path / "password"
        password.write_text("secret\n")
        url = own_valkey.url.replace("redis://", "redis://sidecar@")
        server = replace(server_of(own_valkey, KEY, password), url=url)
        async with linked(server) as (here, peer):
            peer.sends(A, request("x"))
            await here.has({A: 1})

            async def is_checkpointed() -> bool:
                return bool(await own_valkey.call("KEYS", "extproc:cache:*"))

            await until(is_checkpointed, PATIENCE, "a checkpoint")
