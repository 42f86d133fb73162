"""Coding agents: their additions to a prompt neither move sessions nor merge caches."""

from __future__ import annotations

import secrets
import time
from typing import Any, NamedTuple

from extproc.lab.stack.processes import until
from tests.clients import sdks
from tests.clients.sdk import ARTICLE, FAST, asked, port_of, run, user, with_image
from tests.e2e.scene import MODEL, Json, Options, Scene
from tests.extent import PATIENCE

OPTIONS = Options(replicas=4, strategy="PrefixCache", replica_arguments=FAST)
SESSIONS, TURNS = 8, 5
SALTS = [f"tenant-{number}" for number in range(8)]


class Served(NamedTuple):
    """The replica of a request, and the cached part of its prompt."""

    port: str
    predicted: float
    """The share of the prompt that the sidecar expected in the cache."""

    cached: int
    """The number of tokens that the replica found in its cache."""


def served(scene: Scene, raw: Any) -> Served:
    """Return the replica and cache hit of a request, from its response and the access log."""
    request_id = raw.headers["x-request-id"]

    def lines() -> list[Json]:
        log = scene.envoy.access_log()
        return [line for line in log if line["request_id"] == request_id]

    run(until(lambda: bool(lines()), PATIENCE, f"the line of {request_id}"))
    run(scene.agree_on_inflight(0))
    usage = raw.parse().usage
    cached = usage.prompt_tokens_details.cached_tokens
    return Served(port_of(raw), float(lines()[0]["predicted_hit"] or 0), cached)


async def wait_until_all_are_idle(scene: Scene) -> None:
    """Wait until a new scrape of each replica shows no request.

    For a completion with several prompts, a replica counts one request per prompt, and the sidecar
    counts one in all. A scrape during the completion therefore seems to show requests of other
    sidecars. Until the next scrape the sidecar may prefer another replica.
    """
    began = time.monotonic()

    async def idle() -> bool:
        state = await scene.sidecar.state()
        signals = [endpoint["signals"] for endpoint in state[MODEL]["endpoints"]]
        age = time.monotonic() - began
        return all(
            one is not None
            and (one["running"], one["waiting"]) == (0, 0)
            and one["reported_age_seconds"] < age
            for one in signals
        )

    await until(idle, PATIENCE, "a scrape of each idle replica")


def claude_code(sonnet: sdks.anthropic.Anthropic, session: int) -> tuple[set[str], list[int]]:
    """Return the replicas and the cached tokens of one session's turns."""
    instructions = {"type": "text", "text": "You are Claude Code. " * 200}
    messages: Any = user(f"session {session}: {ARTICLE}")
    ports, cached = set(), []
    for turn in range(TURNS):
        # Claude Code changes this block with each request.
        version = f"cc_version=2.1.37.3a3; cc_entrypoint=cli; cch={secrets.token_hex(3)};"
        billing = {"type": "text", "text": f"x-anthropic-billing-header: {version}"}
        system: Any = [billing, instructions]
        raw = sonnet.messages.with_raw_response.create(
            model=MODEL,
            max_tokens=16,
            system=system,
            messages=messages,
            extra_query={"beta": "true"},
        )
        ports.add(port_of(raw))
        message = raw.parse()
        cached.append(message.usage.cache_read_input_tokens or 0)
        messages += [
            {"role": "assistant", "content": message.to_dict()["content"]},
            {"role": "user", "content": f"Go on, {turn}."},
        ]
    return ports, cached


def test_each_session_of_claude_code_stays_on_its_replica(sonnet: sdks.anthropic.Anthropic) -> None:
    sessions = [claude_code(sonnet, number) for number in range(SESSIONS)]
    assert [len(ports) for ports, _ in sessions] == [1] * SESSIONS
    for _, cached in sessions:
        later = cached[1:]
        assert later == sorted(later)
        assert later[0] > len(ARTICLE) // 4 * 0.9


def test_each_cache_salt_has_its_own_blocks(scene: Scene, gpt: sdks.openai.OpenAI) -> None:
    """OpenAI's SDK writes `cache_salt` at the end of the body."""

    def ask(salt: str) -> Served:
        raw = gpt.chat.completions.with_raw_response.create(
            **asked(f"salted: {ARTICLE}", tokens=1), extra_body={"cache_salt": salt}
        )
        return served(scene, raw)

    first, second = ([ask(salt) for salt in SALTS] for _ in range(2))
    assert [(one.predicted, one.cached) for one in first] == [(0, 0)] * len(SALTS)
    assert [one.port for one in second] == [one.port for one in first]
    assert min(one.predicted for one in second) > 0.9
    assert min(one.cached for one in second) > 0


def test_each_image_has_its_own_blocks(scene: Scene, gpt: sdks.openai.OpenAI) -> None:
    """Equal questions about different images share no prefix: the image comes first."""

    def ask(seed: int) -> Served:
        messages = with_image(100_000, seed)
        messages[0]["content"][1]["text"] = ARTICLE
        raw = gpt.chat.completions.with_raw_response.create(
            model=MODEL, messages=messages, max_tokens=1
        )
        return served(scene, raw)

    first, second = ([ask(seed) for seed in range(6)] for _ in range(2))
    assert [one.cached for one in first] == [0] * 6
    assert max(one.predicted for one in first) < 0.1
    assert [one.port for one in second] == [one.port for one in first]
    assert min(one.predicted for one in second) > 0.9


def test_all_prompts_of_a_completion_are_expected_in_the_cache(
    scene: Scene, gpt: sdks.openai.OpenAI
) -> None:
    def ask(prompt: str | list[str]) -> Served:
        raw = gpt.completions.with_raw_response.create(model=MODEL, prompt=prompt, max_tokens=1)
        found = served(scene, raw)
        run(wait_until_all_are_idle(scene))
        return found

    prompts = [f"prompt {number}: {ARTICLE}" for number in range(3)]
    run(wait_until_all_are_idle(scene))
    together = ask(prompts)
    alone = [ask(prompt) for prompt in prompts]
    assert [one.port for one in alone] == [together.port] * 3
    assert min(one.predicted for one in alone) > 0.9
    assert min(one.cached for one in alone) > 0
