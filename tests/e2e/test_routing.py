"""Routing by prefix and session behind real Envoy."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import httpx

from tests.e2e.scene import Launch, Options, chat, events

QUICK = Options(replica_arguments=("--time-scale", "50"))


async def test_equal_prefixes_share_a_replica_and_others_spread(launch: Launch) -> None:
    scene = await launch(QUICK)
    homes: dict[int, set[str]] = {user: set() for user in range(24)}
    for turn in range(3):
        for user, home in homes.items():
            # The key is the start of the first user message, which later turns do not change.
            body = chat(f"I am user {user} and ask", turn=turn)
            body["messages"] += [{"role": "assistant", "content": "yes"}] * turn
            home.add((await scene.send(body)).replica)
    assert all(len(home) == 1 for home in homes.values())
    assert set.union(*homes.values()) == set(scene.replicas.addresses)


async def test_a_response_streams_chunk_by_chunk(launch: Launch) -> None:
    scene = await launch(Options(replica_arguments=("--time-scale", "2")))
    async with scene.stream(chat("hello", tokens=20)) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        now = asyncio.get_running_loop().time
        arrivals = [(now(), data) async for data in events(response)]
    assert arrivals[-1][1] == "[DONE]"
    texts = [json.loads(d)["choices"][0]["delta"].get("content") for _, d in arrivals[:-1]]
    assert len([text for text in texts if text]) == 20
    # 20 tokens at 41 ms each, at twice the real speed, must not arrive in one piece.
    assert arrivals[-1][0] - arrivals[0][0] > 0.2


async def test_the_second_turn_finds_its_prefix_cached(launch: Launch) -> None:
    scene = await launch(QUICK)
    opening = chat("Tell me of the sea. " * 40, tokens=32)
    first = (await scene.send(opening)).json()
    message = first["choices"][0]["message"]
    follow_up = {
        **opening,
        "messages": [*opening["messages"], message, {"role": "user", "content": "And then?"}],
    }
    second = (await scene.send(follow_up)).json()
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    # All of the first turn except its last, partly filled block of 16 tokens.
    assert cached > first["usage"]["total_tokens"] - 16


async def test_a_hot_prefix_spills_beyond_the_load_bound(launch: Launch) -> None:
    scene = await launch(Options(replicas=3, replica_arguments=("--time-scale", "4")))
    replies = await asyncio.gather(
        *(scene.send(chat("everybody asks the same", tokens=30)) for _ in range(30))
    )
    counts = Counter(reply.replica for reply in replies)
    # 125 % of the mean of 10, plus the arriving request.
    assert max(counts.values()) <= 13
    assert len(counts) == 3


async def test_round_robin_takes_turns(launch: Launch) -> None:
    scene = await launch(Options(strategy="RoundRobin", replica_arguments=("--time-scale", "50")))
    order = [(await scene.send(chat("same"))).replica for _ in range(6)]
    assert order[:3] == order[3:]
    assert sorted(order[:3]) == sorted(scene.replicas.addresses)


async def test_a_session_header_keeps_a_session_together(launch: Launch) -> None:
    scene = await launch(
        Options(
            prefix_hash={"prefixSource": "Header:x-session-id"},
            replica_arguments=("--time-scale", "50"),
        )
    )
    homes = [
        (await scene.send(chat(f"question {i}"), headers={"X-Session-Id": "alice"})).replica
        for i in range(8)
    ]
    assert len(set(homes)) == 1


async def test_every_form_of_an_agent_session_id_keeps_a_session_together(
    launch: Launch,
) -> None:
    scene = await launch(
        Options(
            replicas=3,
            prefix_hash={"prefixSource": "Session"},
            replica_arguments=("--time-scale", "50"),
        )
    )
    for headers, fields in (
        ({"X-Claude-Code-Session-Id": "a"}, {}),
        ({"session_id": "b"}, {}),
        ({}, {"prompt_cache_key": "c"}),
        ({}, {"metadata": {"user_id": "d"}}),
    ):
        bodies = [{**chat(f"question {number}"), **fields} for number in range(6)]
        homes = {(await scene.send(body, headers=headers)).replica for body in bodies}
        assert len(homes) == 1, (headers, fields)


async def test_an_adapters_name_routes_to_its_base_model(launch: Launch) -> None:
    scene = await launch(Options(adapters=["sql-lora"], replica_arguments=("--time-scale", "50")))
    assert (await scene.send(chat("hello", model="sql-lora"))).status == 200
    (line,) = await scene.access_log(1)
    assert (line["model"], line["adapter"]) == ("llama", "sql-lora")


async def test_http2_clients_are_served(launch: Launch) -> None:
    scene = await launch(QUICK)
    async with httpx.AsyncClient(http1=False, http2=True, base_url=scene.envoy.url) as client:
        reply = await client.post("/v1/chat/completions", json=chat("hello"))
    assert reply.status_code == 200
    assert reply.http_version == "HTTP/2"
    (line,) = await scene.access_log(1)
    assert line["protocol"] == "HTTP/2"


async def test_the_access_log_contains_the_whole_decision(launch: Launch) -> None:
    scene = await launch(QUICK)
    reply = await scene.send(chat("hello"))
    (line,) = await scene.access_log(1)
    expected = {
        "status": 200,
        "route": "chosen",
        "upstream": reply.replica,
        "model": "llama",
        "adapter": "",
        "strategy": "PrefixHash",
        "endpoint": reply.replica,
        "reason": "prefix",
        # The xxh64 of "hello".
        "prefix_hash": "26c7827d889f6da3",
        "inflight": 0,
        "candidates": 3,
        "hops": 0,
    }
    assert {name: line[name] for name in expected} == expected


async def test_the_sidecar_can_be_reached_over_a_unix_socket(launch: Launch) -> None:
    scene = await launch(Options(unix_socket=True, replica_arguments=("--time-scale", "50")))
    assert (await scene.send(chat("hello"))).status == 200
    (line,) = await scene.access_log(1)
    assert line["route"] == "chosen"
