"""Real time agrees with simulated time: one workload through the real stack, and simulated.

The engines are stand-ins in both, three times as fast in the real one; Envoy, the sidecar,
sockets and the load generator are real there.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from extproc.core.spec import LoadBalancingSpec
from extproc.lab.fleet.sidecars import Routing
from extproc.lab.fleet.simulation import Scenario, simulate
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.profile import L4_LLAMA_3_1_8B_FP8
from extproc.lab.workloads import Options as WorkloadOptions
from extproc.lab.workloads import named
from tests.e2e.scene import MODEL, Launch, Options, Scene

WORKLOAD = "kubeai-chat-800"
REPLICAS = 4
SESSIONS = 130
CONCURRENCY = 28
KV_TOKENS = 18_000  # so few that the caches forget
TIME_SCALE = 3.0

# Two runs of 130 requests at three times the speed take a quarter of a minute.
PATIENCE_SECONDS = 90


async def measured(scene: Scene, directory: Path) -> dict[str, Any]:
    """The figures that `extproc load` gives of the real stack."""
    figures = directory / "figures.json"
    asked = ["--url", scene.envoy.url, "--model", MODEL, "--workload", WORKLOAD]
    sized = ["--sessions", str(SESSIONS), "--concurrency", str(CONCURRENCY)]
    told = ["--processes", "1", "--json", str(figures)]
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "extproc.lab.load", *asked, *sized, *told),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        printed, _ = await asyncio.wait_for(process.communicate(), PATIENCE_SECONDS)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, printed.decode()
    found: dict[str, Any] = json.loads(figures.read_text())
    return found


def simulated(scene: Scene) -> Summary:
    """The figures of the same in simulated time, with the same places on the ring."""
    options = WorkloadOptions(sessions=SESSIONS, concurrency=CONCURRENCY)
    scenario = Scenario(
        named(WORKLOAD, options),
        replace(L4_LLAMA_3_1_8B_FP8, kv_tokens=KV_TOKENS),
        Routing(LoadBalancingSpec(), addresses=scene.replicas.addresses),
        REPLICAS,
    )
    return summarize(simulate(scenario))


async def test_hits_and_throughput_are_those_of_the_simulation(
    launch: Launch, tmp_path: Path
) -> None:
    arguments = ["--time-scale", str(TIME_SCALE), "--kv-tokens", str(KV_TOKENS)]
    scene: Scene = await launch(Options(replicas=REPLICAS, replica_arguments=arguments))
    real = await measured(scene, tmp_path)
    ours = await asyncio.to_thread(simulated, scene)
    assert real["failed"] == 0
    assert (real["completed"], real["total_input_tokens"], real["total_output_tokens"]) == (
        ours.completed,
        ours.total_input_tokens,
        ours.total_output_tokens,
    )
    assert ours.hit_rate is not None
    assert 0.3 < ours.hit_rate < 0.9, "caches that forget nothing, or all, would prove little"
    assert real["hit_rate"] == pytest.approx(ours.hit_rate, abs=0.03)
    throughput = real["total_token_throughput"] / TIME_SCALE
    print("hits", real["hit_rate"], ours.hit_rate, "tok/s", throughput, ours.total_token_throughput)

    assert throughput == pytest.approx(ours.total_token_throughput, rel=0.10)
