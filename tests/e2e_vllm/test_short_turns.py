"""Short turns on real engines: they go where the response to the previous turn is still cached."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from statistics import mean

from extproc.core.request.blocks import BLOCK_BYTES
from extproc.lab.real_vllm.engines import BLOCK_SIZE
from tests.e2e.scene import CHAT, HttpResponse, Json, chat
from tests.e2e.test_prefix_cache import decisions_logged, readings_are_idle, text
from tests.e2e_vllm.scene import Launch, Options, RecordFigure, VllmScene

# A letter is a token here. The sidecar's blocks are those of the prompts that it has sent, so by
# these, all sessions look alike. It takes longer to compute their responses again than to wait.
SESSIONS = 6
SYSTEM_LETTERS = 3_000
ANSWER_TOKENS = 1_200

OFTEN = {"intervalSeconds": 0.2, "idleIntervalSeconds": 0.2}


async def show_times(scene: VllmScene) -> None:
    """Let the sidecar read short times of each engine: on shared cores, some prompts take long.

    Otherwise the engines may seem to have different GPUs.
    """
    for address in scene.engines.addresses:
        for number in range(4):
            body = chat(text(f"{address} {number}", 300), tokens=50)
            async with scene.session.post(f"http://{address}{CHAT}", json=body) as reply:
                assert reply.status == 200
            await readings_are_idle(scene.sidecar)


async def decisions_of(scene: VllmScene, replies: Sequence[HttpResponse]) -> list[Json]:
    """Return the decision of each of these responses, the only ones so far."""
    assert {reply.status for reply in replies} == {200}
    log = {line["request_id"]: line["decision"] for line in await scene.access_log(len(replies))}
    return [log[reply.headers["x-request-id"]] for reply in replies]


async def test_go_where_their_responses_are_cached(
    launch: Launch, record_figure: RecordFigure
) -> None:
    scene = await launch(Options("PrefixCache", signals=OFTEN, change_config=decisions_logged))
    await show_times(scene)
    system = text("short turns", SYSTEM_LETTERS)
    turns = [chat(f"I am {n}.", system=system, tokens=ANSWER_TOKENS) for n in range(SESSIONS)]
    first = await asyncio.gather(*map(scene.send, turns))
    later = []
    for turn, reply in zip(turns, first, strict=True):
        answer = reply.json()["choices"][0]["message"]
        turn["messages"] += [answer, {"role": "user", "content": "Go on!"}]
        await readings_are_idle(scene.sidecar)
        later.append(await scene.send(turn))
    decisions = await decisions_of(scene, [*first, *later])
    found, stayed = [], 0
    for old, new, reply, next_reply in zip(
        decisions[:SESSIONS], decisions[SESSIONS:], first, later, strict=True
    ):
        usage = next_reply.json()["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        found.append(cached / usage["prompt_tokens"])
        # The sidecar predicts whole blocks of its index, and a whole response.
        missed = cached - new["predicted_hit"] * usage["prompt_tokens"]
        assert -2 * BLOCK_SIZE < missed < BLOCK_BYTES
        if new["endpoint"] == old["endpoint"]:
            stayed += 1
            # The engine caches whole blocks, and not the last token of a response.
            assert cached > reply.json()["usage"]["total_tokens"] - 1 - BLOCK_SIZE
    expected = mean(decision["predicted_hit"] for decision in decisions[SESSIONS:])
    figure = f"{mean(found):.1%}, predicted {expected:.1%}, {stayed} of {SESSIONS} turns stayed"
    record_figure("short turns, prompt tokens cached", figure)
    # On shared cores, an engine may seem busy or slow for a moment.
    assert stayed > SESSIONS / 2
