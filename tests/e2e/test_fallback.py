"""Retries, metadata and fail-closed mode in the variants of the Envoy configuration."""

from __future__ import annotations

import pytest

from extproc.lab.stack.processes import free_port
from tests.e2e.scene import Launch, Options, chat, chosen_endpoint

QUICK = ("--time-scale", "50")


@pytest.mark.parametrize("config", ["fallback-override-host.yaml", "envoy.yaml"])
async def test_the_second_candidate_serves_if_the_first_refuses(
    launch: Launch, config: str
) -> None:
    dead = f"127.0.0.1:{free_port()}"
    scene = await launch(
        Options(replicas=2, more_endpoints=[dead], config=config, replica_arguments=QUICK)
    )
    replies = [await scene.send(chat(f"user {i}")) for i in range(20)]
    assert {reply.status for reply in replies} == {200}
    log = await scene.access_log(20)
    refused = [line for line in log if chosen_endpoint(line) == dead]
    assert refused
    assert {line["attempts"] for line in refused} == {2}


@pytest.mark.parametrize("config", ["metadata.yaml", "fallback-override-host.yaml"])
async def test_the_choice_travels_as_metadata(launch: Launch, config: str) -> None:
    scene = await launch(Options(config=config, replica_arguments=QUICK))
    replies = [await scene.send(chat(f"user {i}")) for i in range(10)]
    log = await scene.access_log(10)
    assert [line["upstream"] for line in log] == [reply.replica for reply in replies]
    assert [line["decision"]["endpoint"] for line in log] == [reply.replica for reply in replies]


async def test_fail_closed_returns_503_while_the_sidecar_is_down(launch: Launch) -> None:
    scene = await launch(Options(config="fail-closed.yaml", replica_arguments=QUICK))
    assert (await scene.send(chat("hello"))).status == 200
    await scene.sidecar.kill()
    assert (await scene.send(chat("hello"))).status == 503
    await scene.sidecar.start()
    assert (await scene.send(chat("hello"))).status == 200
