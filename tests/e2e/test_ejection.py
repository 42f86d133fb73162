"""Through real Envoy: endpoints that fail are avoided, and come back when they serve again."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from extproc.core.fleet.ejection import FAILURES, FIRST_SECONDS
from extproc.core.fleet.outcome import Outcome
from extproc.lab.stack.processes import until
from tests.e2e.failing_endpoint import FailingEndpoint, Manner, failing_endpoint
from tests.e2e.scene import (
    MODEL,
    Json,
    Launch,
    Options,
    Reply,
    Scene,
    chat,
    chosen_endpoint,
    processing_modes,
)

WITH_RETRIES = pytest.mark.parametrize(
    "config", ["envoy.yaml", "fallback-override-host.yaml", "endpoint-picker.yaml"]
)
TRIED = FAILURES[Outcome.REPLACED]


@pytest.fixture
async def failing() -> AsyncIterator[FailingEndpoint]:
    """An endpoint that refuses connections."""
    async with failing_endpoint() as one:
        yield one


def options(
    failing: FailingEndpoint, config: str, change: Callable[[Json], None] = lambda _: None
) -> Options:
    """Each endpoint in turn: of three requests the failing one gets one."""
    return Options(
        replicas=2,
        more_endpoints=[failing.address],
        strategy="RoundRobin",
        config=config,
        change_config=change,
        replica_arguments=("--time-scale", "50"),
    )


def retrying(**policy: str | int) -> Callable[[Json], None]:
    """Changes what a configuration retries, where it does."""

    def change(config: Json) -> None:
        listener = config["static_resources"]["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
            if "retry_policy" in route["route"]:
                route["route"]["retry_policy"].update(policy)

    return change


def hiding_responses(config: Json) -> None:
    """Stops a configuration from showing the sidecar the headers of responses."""
    for modes in processing_modes(config):
        modes["response_header_mode"] = "SKIP"


async def ask(scene: Scene, times: int) -> list[Reply]:
    """So many requests, one after the other."""
    return [await scene.send(chat(f"user {i}")) for i in range(times)]


async def states(scene: Scene) -> dict[str, str]:
    """The state of each endpoint."""
    endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
    return {endpoint["address"]: endpoint["state"] for endpoint in endpoints}


async def ejected(scene: Scene) -> set[str]:
    return {address for address, state in (await states(scene)).items() if state == "ejected"}


async def comes_back(scene: Scene, failing: FailingEndpoint) -> None:
    """Goes on asking until it is in service again; no client sees an error meanwhile."""

    async def serves() -> bool:
        assert {reply.status for reply in await ask(scene, 3)} == {200}
        return failing.address not in await ejected(scene)

    await until(serves, FIRST_SECONDS + 5, "the endpoint to be in service again")


class TestAnEndpointThatRefusesConnections:
    @WITH_RETRIES
    async def test_is_tried_a_few_times_and_comes_back_when_it_listens(
        self, launch: Launch, failing: FailingEndpoint, config: str
    ) -> None:
        scene = await launch(options(failing, config))
        assert {reply.status for reply in await ask(scene, 30)} == {200}
        log = await scene.access_log(30)
        chosen = [line for line in log if chosen_endpoint(line) == failing.address]
        assert [line["attempts"] for line in chosen] == [2] * TRIED
        assert await ejected(scene) == {failing.address}
        _, metrics = await scene.sidecar.get("/metrics")
        assert f'extproc_endpoints{{model="{MODEL}",state="ejected"}} 1.0' in metrics
        assert f'extproc_ejections_total{{model="{MODEL}",reason="replaced"}} 1.0' in metrics
        await failing.listen(200)
        await comes_back(scene, failing)
        before = failing.tried
        await ask(scene, 9)
        assert failing.tried == before + 3

    async def test_is_never_seen_where_responses_are_not_shown(
        self, launch: Launch, failing: FailingEndpoint
    ) -> None:
        scene = await launch(options(failing, "envoy.yaml", hiding_responses))
        assert {reply.status for reply in await ask(scene, 30)} == {200}
        log = await scene.access_log(30)
        chosen = [line for line in log if chosen_endpoint(line) == failing.address]
        assert [line["attempts"] for line in chosen] == [2] * 10
        assert await ejected(scene) == set()

    async def test_is_avoided_where_nothing_is_retried_too(
        self, launch: Launch, failing: FailingEndpoint
    ) -> None:
        scene = await launch(options(failing, "envoy.yaml", retrying(num_retries=0)))
        statuses = [reply.status for reply in await ask(scene, 30)]
        assert statuses.count(503) == FAILURES[Outcome.RESET]
        assert statuses.count(200) == 30 - statuses.count(503)
        assert await ejected(scene) == {failing.address}


class TestAnEndpointThatResetsConnections:
    @WITH_RETRIES
    async def test_is_connected_to_a_few_times(
        self, launch: Launch, failing: FailingEndpoint, config: str
    ) -> None:
        await failing.listen("resets")
        retry = retrying(retry_on="connect-failure,refused-stream,reset")
        scene = await launch(options(failing, config, retry))
        assert {reply.status for reply in await ask(scene, 30)} == {200}
        assert failing.tried == TRIED
        assert await ejected(scene) == {failing.address}
        failing.manner = 200
        await comes_back(scene, failing)

    async def test_is_avoided_where_resets_are_not_retried_too(
        self, launch: Launch, failing: FailingEndpoint
    ) -> None:
        await failing.listen("resets")
        retry = retrying(retry_on="connect-failure,refused-stream")
        scene = await launch(options(failing, "envoy.yaml", retry))
        statuses = [reply.status for reply in await ask(scene, 30)]
        assert statuses.count(503) == failing.tried == FAILURES[Outcome.RESET]
        assert await ejected(scene) == {failing.address}


class TestAnEndpointThatNeverAnswers:
    """Somebody must give up: Envoy, if it is told when."""

    @WITH_RETRIES
    async def test_is_tried_a_few_times_if_each_try_may_take_so_long_only(
        self, launch: Launch, failing: FailingEndpoint, config: str
    ) -> None:
        await failing.listen("hangs")
        retry = retrying(retry_on="connect-failure,refused-stream,reset", per_try_timeout="0.5s")
        scene = await launch(options(failing, config, retry))
        assert {reply.status for reply in await ask(scene, 20)} == {200}
        assert failing.tried == TRIED
        assert await ejected(scene) == {failing.address}

    @pytest.mark.parametrize("timeout", ["per_try_timeout", "per_try_idle_timeout"])
    async def test_is_avoided_where_that_is_not_retried_too(
        self, launch: Launch, failing: FailingEndpoint, timeout: str
    ) -> None:
        await failing.listen("hangs")
        retry = retrying(retry_on="connect-failure,refused-stream", **{timeout: "0.5s"})
        scene = await launch(options(failing, "fallback-override-host.yaml", retry))
        statuses = [reply.status for reply in await ask(scene, 30)]
        assert statuses.count(504) == failing.tried == FAILURES[Outcome.TIMEOUT]
        assert await ejected(scene) == {failing.address}


class TestAnEndpointThatAnswers:
    @pytest.mark.parametrize("manner", [500, 503])
    async def test_with_errors_is_avoided(
        self, launch: Launch, failing: FailingEndpoint, manner: Manner
    ) -> None:
        await failing.listen(manner)
        scene = await launch(options(failing, "envoy.yaml"))
        statuses = [reply.status for reply in await ask(scene, 30)]
        assert statuses.count(int(manner)) == failing.tried == FAILURES[Outcome.ERROR]
        assert await ejected(scene) == {failing.address}

    @pytest.mark.parametrize("manner", [404, 422, 429])
    async def test_that_the_client_is_wrong_or_must_wait_is_not(
        self, launch: Launch, failing: FailingEndpoint, manner: Manner
    ) -> None:
        await failing.listen(manner)
        scene = await launch(options(failing, "envoy.yaml"))
        statuses = [reply.status for reply in await ask(scene, 30)]
        assert statuses.count(int(manner)) == failing.tried == 10
        assert await ejected(scene) == set()


async def test_where_all_fail_requests_go_out_all_the_same(
    launch: Launch, failing: FailingEndpoint
) -> None:
    await failing.listen(503)
    scene = await launch(options(failing, "envoy.yaml"))
    await scene.replicas.kill()
    replies = await ask(scene, 40)
    assert {reply.status for reply in replies} == {503}
    assert not any(b"no_endpoints" in reply.body for reply in replies)
    assert len(await ejected(scene)) == 1
    log = await scene.access_log(40)
    assert len({chosen_endpoint(line) for line in log[-20:]}) >= 2
