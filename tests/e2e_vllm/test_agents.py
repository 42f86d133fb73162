"""Agents' sessions on real engines: turns stay on their engine, and predictions are true."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from random import Random

from extproc.lab.real_vllm.metrics import CacheUse
from tests.e2e.scene import MODEL, Json
from tests.e2e_vllm.scene import Launch, Options, RecordFigure, VllmScene

# A letter is a token here. All sessions together need 18,000 tokens: more than the cache of one
# engine (16,384), and less than the caches of two.
SESSIONS = 6
TURNS = 6
SYSTEM_LETTERS = 3_000
MESSAGE_LETTERS = 400
ANSWER_TOKENS = 12
TOOL_SECONDS = 0.3


def text(name: str, letters: int) -> str:
    """Return random words that begin with the name."""
    rng = Random(name)
    words = " ".join(f"{rng.getrandbits(20):05x}" for _ in range(letters // 6))
    return f"{name} {words}"[:letters]


def sessions_logged(config: Json) -> None:
    """Add the session of each request to the access log."""
    listener = config["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    log = manager["access_log"][0]["typed_config"]["log_format"]["json_format"]
    log["session"] = "%REQ(x-session)%"


async def run_session(scene: VllmScene, strategy: str, number: int) -> None:
    """Send a session's turns, with a pause for its tool after each."""
    await asyncio.sleep(number * TOOL_SECONDS)
    messages: list[Json] = [
        {"role": "system", "content": text(f"{strategy} system", SYSTEM_LETTERS)}
    ]
    for turn in range(TURNS):
        content = text(f"{strategy} {number} {turn}", MESSAGE_LETTERS)
        messages.append({"role": "user", "content": content})
        reply = await scene.send(
            {"model": MODEL, "messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0},
            headers={"x-session": f"{strategy} {number}"},
        )
        assert reply.status == 200
        messages.append(reply.json()["choices"][0]["message"])
        await asyncio.sleep(TOOL_SECONDS)


async def predicted(scene: VllmScene) -> CacheUse:
    """Return the prompt tokens that the sidecar has counted, and those it predicted as cached."""
    _, exposition = await scene.sidecar.get("/metrics")
    values = {
        line.partition("{")[0]: float(line.rpartition(" ")[2])
        for line in exposition.splitlines()
        if f'model="{MODEL}"' in line
    }
    return CacheUse(
        int(values.get("extproc_prompt_tokens_total", 0)),
        int(values.get("extproc_predicted_cached_tokens_total", 0)),
    )


async def cache_use_under(strategy: str, scene: VllmScene) -> CacheUse:
    """Run the sessions and return the use of all caches."""
    await scene.use(Options(strategy=strategy))
    before = await scene.engines.cache_use()
    await asyncio.gather(*(run_session(scene, strategy, number) for number in range(SESSIONS)))
    after = await scene.engines.cache_use()
    used = (after[address] - before[address] for address in after)
    return sum(used, CacheUse(0, 0))


async def test_turns_stay_and_hits_are_as_predicted(
    launch: Launch, record_figure: RecordFigure
) -> None:
    scene = await launch(Options(change_config=sessions_logged))
    hashed = await cache_use_under("PrefixHash", scene)
    found = await cache_use_under("PrefixCache", scene)
    forecast = await predicted(scene)
    engines: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in await scene.access_log(2 * SESSIONS * TURNS):
        if line["session"].startswith("PrefixCache"):
            engines[line["session"]][line["endpoint"]] += 1
    record_figure("agents, prompt tokens cached, PrefixHash", f"{hashed.rate:.1%}")
    record_figure("agents, prompt tokens cached, PrefixCache", f"{found.rate:.1%}")
    record_figure("agents, predicted", f"{forecast.rate:.1%}")
    stayed = sum(max(each.values()) for each in engines.values())
    record_figure("agents, turns on their session's engine", f"{stayed} of {SESSIONS * TURNS}")
    assert stayed >= 0.8 * SESSIONS * TURNS
    assert found.rate >= hashed.rate - 0.02
    assert abs(forecast.rate - found.rate) <= 0.05
