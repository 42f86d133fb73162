"""Checkpoints in a real Valkey, from which sidecars start warm."""

from __future__ import annotations

from time import monotonic

from extproc.lab.stack.processes import until
from extproc.lab.stack.valkey import Valkey
from tests.adapters.shared_state.linked import KEY, Linked, linked, server_of
from tests.core.sharing.sidecars import ADDRESSES, A, B, request
from tests.extent import PATIENCE

WORDS = ("a", "long", "conversation")


async def checkpointed(valkey: Valkey, *addresses: str) -> None:
    """Wait until the checkpoints of these endpoints are written."""
    keys = [f"{KEY}:cache:{address}" for address in addresses]

    async def exist() -> bool:
        return bool(await valkey.call("EXISTS", *keys) == len(keys))

    await until(exist, PATIENCE, "checkpoints")


async def restored(valkey: Valkey, prompt_tokens: float = 1000) -> Linked:
    """Return a sidecar that has started."""
    sidecar = Linked(server_of(valkey), monotonic, prompt_tokens)
    await sidecar.link.start(PATIENCE)
    return sidecar


async def test_sidecar_that_starts_later_knows_what_caches_hold(valkey: Valkey) -> None:
    async with linked(server_of(valkey), 1) as (here,):
        here.sends(A, request(*WORDS)).release()
        await checkpointed(valkey, A)
        await valkey.call("DEL", KEY)
        late = await restored(valkey)
        assert late.matches(*WORDS) == {A: 3}
        await late.link.close()


async def test_sidecar_that_starts_after_all_others_ended_knows_what_caches_hold(
    valkey: Valkey,
) -> None:
    async with linked(server_of(valkey)) as (here, peer):
        here.sends(A, request(*WORDS))
        peer.sends(B, request("other"))
        await checkpointed(valkey, A, B)
    await valkey.call("DEL", KEY)
    late = await restored(valkey)
    assert late.matches(*WORDS) == {A: 3}
    assert late.matches("other") == {B: 1}
    assert late.loads() == {}
    await late.link.close()


async def test_prompts_since_the_last_checkpoint_come_from_the_stream(valkey: Valkey) -> None:
    async with linked(server_of(valkey), 1) as (here,):
        here.sends(A, request("first"))
        await checkpointed(valkey, A)
        here.sends(A, request(*WORDS))
        here.sends(B, request("other"))
    late = await restored(valkey)
    assert late.matches(*WORDS) == {A: 3}
    assert late.matches("first") == {A: 1}
    assert late.matches("other") == {B: 1}
    await late.link.close()


async def test_engine_that_restarted_has_no_checkpoint(valkey: Valkey) -> None:
    async with linked(server_of(valkey), 1) as (here,):
        here.sends(A, request(*WORDS)).release()
        await checkpointed(valkey, A)
        await valkey.call("DEL", KEY)
        late = await restored(valkey, prompt_tokens=10)
        assert late.matches(*WORDS) == {}
        await late.link.close()


async def test_one_sidecar_writes_all_of_them(valkey: Valkey) -> None:
    async with linked(server_of(valkey), 3) as sidecars:
        for address in ADDRESSES:
            sidecars[-1].sends(address, request(*WORDS)).release()
        await checkpointed(valkey, *ADDRESSES)
        first = min(one.link.document()["id"] for one in sidecars)
        assert [one.link._peers.is_first() for one in sidecars] == [
            one.link.document()["id"] == first for one in sidecars
        ]


async def test_checkpoints_expire(valkey: Valkey) -> None:
    async with linked(server_of(valkey), 1) as (here,):
        here.sends(A, request(*WORDS)).release()
        await checkpointed(valkey, A)
    assert 0 < await valkey.call("TTL", f"{KEY}:cache:{A}") <= 600


async def test_garbage_is_counted_and_ignored(valkey: Valkey) -> None:
    await valkey.call("SET", f"{KEY}:cache:{A}", b"\x93\x01\xff")
    await valkey.call("LPUSH", f"{KEY}:cache:{B}", "another", "type")
    late = await restored(valkey)
    assert late.is_connected
    assert late.matches(*WORDS) == {}
    assert late.metric("messages_total", direction="unreadable") == 1
    await late.link.close()


async def test_entries_of_a_minute_ago_are_removed(valkey: Valkey) -> None:
    await valkey.call("XADD", KEY, "1000-0", "o", "old", "b", "x")
    # An approximate limit removes whole nodes of a hundred entries.
    add = f"redis.call('XADD', '{KEY}', (2000 + i) .. '-0', 'o', 'old', 'b', 'x')"
    await valkey.call("EVAL", f"for i = 1, 1000 do {add} end", 0)
    async with linked(server_of(valkey), 1):

        async def removed() -> bool:
            return bool(await valkey.call("XLEN", KEY) < 200)

        await until(removed, PATIENCE, "old entries to be removed")
