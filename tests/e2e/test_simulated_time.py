"""Real time agrees with simulated time: one workload through the real stack, and simulated.

The engines are stand-ins in both, three times as fast in the real one; Envoy, the sidecar,
sockets and the load generator are real there.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from random import Random

import pytest

from extproc.core.schema import LoadBalancingSpec
from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8
from extproc.lab.load import figures, parent, target
from extproc.lab.load.bodies import BodyOptions
from extproc.lab.load.shares import RequestOptions, plan
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.simulation.sidecars import Routing
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.workloads.workload import Segment, Session, Workload, conversation
from tests.e2e.scene import MODEL, Launch, Options, Scene
from tests.extent import PATIENCE

REPLICAS = 3
KV_TOKENS = 12_000  # so few that the caches forget
TIME_SCALE = 3.0
THINK_SECONDS = 0.15
"""Between an answer and the next message. A client that asks in the very moment in which the
answer ends is sometimes faster than the sidecar hears of that end, which no simulation knows."""


def conversations(think_seconds: float) -> Workload:
    """60 conversations of six turns behind four openings, 20 at a time: each answer is appended.

    As one text, since a chat template adds tokens that the simulation does not know.
    """
    rng = Random("conversations")
    openings = [Segment(f"opening {number}", 120, "system") for number in range(4)]
    sessions = []
    for number in range(60):
        messages = [rng.randint(30, 150) for _ in range(6)]
        answers = [rng.randint(15, 45) for _ in range(6)]
        turns = conversation(f"talk {number}", [rng.choice(openings)], messages, answers)
        sessions.append(Session([turn._replace(think_seconds=think_seconds) for turn in turns]))
    return Workload("conversations", sessions, concurrency=20, api="completions")


async def measured(scene: Scene) -> Summary:
    """Of the real stack, by the load generator."""
    workload = conversations(THINK_SECONDS / TIME_SCALE)
    url = target.parse(scene.envoy.url, {})
    envoy = replace(url, addresses=target.reachable_addresses(url, 5, None))
    options = RequestOptions(envoy, BodyOptions(MODEL, workload.api), timeout=30)
    work = plan(workload, seed=0, processes=1, options=options)
    collected = await parent.run(work, lambda phase: None, lambda progress: None)
    return summarize(figures.run_of(collected, workload.name, "real"))


def simulated(scene: Scene) -> Summary:
    """Of the same in simulated time, with the same places on the ring."""
    scenario = Scenario(
        conversations(THINK_SECONDS),
        replace(L4_LLAMA_3_1_8B_FP8, kv_tokens=KV_TOKENS),
        Routing(LoadBalancingSpec(), addresses=scene.replicas.addresses),
        REPLICAS,
    )
    return summarize(simulate(scenario))


async def test_hits_and_throughput_are_those_of_the_simulation(launch: Launch) -> None:
    arguments = ["--time-scale", str(TIME_SCALE), "--kv-tokens", str(KV_TOKENS)]
    scene: Scene = await launch(Options(replicas=REPLICAS, replica_arguments=arguments))
    real = await asyncio.wait_for(measured(scene), PATIENCE)
    ours = await asyncio.to_thread(simulated, scene)
    assert real.failed == 0
    assert (real.completed, real.total_input_tokens, real.total_output_tokens) == (
        ours.completed,
        ours.total_input_tokens,
        ours.total_output_tokens,
    )
    throughput = real.total_token_throughput / TIME_SCALE
    assert ours.hit_rate is not None
    assert real.hit_rate == pytest.approx(ours.hit_rate, abs=0.03)
    assert throughput == pytest.approx(ours.total_token_throughput, rel=0.10)
