"""Endpoints that fail behind real Envoy are ejected, and return when they serve again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from extproc.core.fleet.ejection import FAILURES, FIRST_SECONDS
from extproc.core.fleet.outcome import Outcome
from extproc.lab.stack.processes import until
from tests.e2e.failing_endpoint import FailingEndpoint, Manner, failing_endpoint
from tests.e2e.scene import (
    MODEL,
    HttpResponse,
    Json,
    Launch,
    Options,
    Scene,
    chat,
    chosen_endpoint,
    processing_modes,
)

WITH_RETRIES = pytest.mark.parametrize(
    "config", ["envoy.yaml", "fallback-override-host.yaml", "endpoint-picker.yaml"]
)
RETRIES_BEFORE_EJECTION = FAILURES[Outcome.REPLACED]


@pytest.fixture
async def failing() -> AsyncIterator[FailingEndpoint]:
    """Yield an endpoint that refuses connections."""
    async with failing_endpoint() as endpoint:
        yield endpoint


def options(
    failing: FailingEndpoint, config: str, change: Callable[[Json], None] = lambda _: None
) -> Options:
    """Return a scene in which the failing endpoint gets every third request."""
    return Options(
        replicas=2,
        more_endpoints=[failing.address],
        strategy="RoundRobin",
        config=config,
        change_config=change,
        replica_arguments=("--time-scale", "50"),
    )


def retrying(**policy: str | int) -> Callable[[Json], None]:
    """Return a change of the retry policy of every route that has one."""

    def change(config: Json) -> None:
        listener = config["static_resources"]["listeners"][0]
        manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
        for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
            if "retry_policy" in route["route"]:
                route["route"]["retry_policy"].update(policy)

    return change


def hiding_responses(config: Json) -> None:
    """Stop Envoy from sending response headers to the sidecar."""
    for modes in processing_modes(config):
        modes["response_header_mode"] = "SKIP"


async def send_requests(scene: Scene, times: int) -> list[HttpResponse]:
    """Send a number of requests one after the other."""
    return [await scene.send(chat(f"user {i}")) for i in range(times)]


async def states(scene: Scene) -> dict[str, str]:
    """Return the state of each endpoint by address."""
    endpoints = (await scene.sidecar.state())[MODEL]["endpoints"]
    return {endpoint["address"]: endpoint["state"] for endpoint in endpoints}


async def ejected(scene: Scene) -> set[str]:
    return {address for address, state in (await states(scene)).items() if state == "ejected"}


async def returns_to_service(scene: Scene, failing: FailingEndpoint) -> None:
    """Send requests until the endpoint is in service again; every request must succeed."""

    async def serves() -> bool:
        await asyncio.sleep(0.2)
        assert {reply.status for reply in await send_requests(scene, 3)} == {200}
        return failing.address not in await ejected(scene)

    await until(serves, FIRST_SECONDS + 5, "the endpoint to be in service again")


class TestEndpointThatRefusesConnections:
    @WITH_RETRIES
    async def test_is_ejected_after_a_few_retries_and_returns_when_it_listens(
        self, launch: Launch, failing: FailingEndpoint, config: str
    ) -> None:
        scene = await launch(options(failing, config))
        assert {reply.status for reply in await send_requests(scene, 30)} == {200}
        log = await scene.access_log(30)
        chosen = [line for line in log if chosen_endpoint(line) == failing.address]
        assert [line["attempts"] for line in chosen] == [2] * RETRIES_BEFORE_EJECTION
        assert await ejected(scene) == {failing.address}
        _, metrics = await scene.sidecar.get("/metrics")
        assert f'extproc_endpoints{{model="{MODEL}",state="ejected"}} 1.0' in metrics
        assert f'extproc_ejections_total{{model="{MODEL}",reason="replaced"}} 1.0' in metrics
        await failing.listen(200)
        await returns_to_service(scene, failing)
        before = failing.connections
        await send_requests(scene, 9)
        assert failing.connections == before + 3

    async def test_is_not_ejected_without_response_headers(
        self, launch: Launch, failing: FailingEndpoint
    ) -> None:
        scene = await launch(options(failing, "envoy.yaml", hiding_responses))
        assert {reply.status for reply in await send_requests(scene, 30)} == {200}
        log = await scene.access_log(30)
        chosen = [line for line in log if chosen_endpoint(line) == failing.address]
        assert [line["attempts"] for line in chosen] == [2] * 10
        assert await ejected(scene) == set()

    async def test_is_ejected_without_retries(
        self, launch: Launch, failing: FailingEndpoint
    ) -> None:
        scene = await launch(options(failing, "envoy.yaml", retrying(num_retries=0)))
        statuses = [reply.status for reply in await send_requests(scene, 30)]
        assert statuses.count(503) == FAILURES[Outcome.RESET]
        assert statuses.count(200) == 30 - statuses.count(503)
        assert await ejected(scene) == {failing.address}


class TestEndpointThatResetsConnections:
    @WITH_RETRIES
    async def test_is_ejected_after_a_few_retries(
        self, launch: Launch, failing: FailingEndpoint, config: str
    ) -> None:
        await failing.listen("resets")
        retry = retrying(retry_on="connect-failure,refused-stream,reset")
        scene = await launch(options(failing, config, retry))
        assert {reply.status for reply in await send_requests(scene, 30)} == {200}
        assert failing.connections == RETRIES_BEFORE_EJECTION
        assert await ejected(scene) == {failing.address}
        failing.manner = 200
        await returns_to_service(scene, failing)

    async def test_is_ejected_if_resets_are_not_retried(
        self, launch: Launch, failing: FailingEndpoint
    ) -> None:
        await failing.listen("resets")
        retry = retrying(retry_on="connect-failure,refused-stream")
        scene = await launch(options(failing, "envoy.yaml", retry))
        statuses = [reply.status for reply in await send_requests(scene, 30)]
        assert statuses.count(503) == failing.connections == FAILURES[Outcome.RESET]
        assert await ejected(scene) == {failing.address}


class TestEndpointThatNeverResponds:
    """An endpoint that Envoy abandons after a timeout of its configuration."""

    @WITH_RETRIES
    async def test_is_ejected_after_a_few_timeouts_per_try(
        self, launch: Launch, failing: FailingEndpoint, config: str
    ) -> None:
        await failing.listen("hangs")
        retry = retrying(retry_on="connect-failure,refused-stream,reset", per_try_timeout="0.5s")
        scene = await launch(options(failing, config, retry))
        assert {reply.status for reply in await send_requests(scene, 20)} == {200}
        assert failing.connections == RETRIES_BEFORE_EJECTION
        assert await ejected(scene) == {failing.address}

    @pytest.mark.parametrize("timeout", ["per_try_timeout", "per_try_idle_timeout"])
    async def test_is_ejected_if_timeouts_are_not_retried(
        self, launch: Launch, failing: FailingEndpoint, timeout: str
    ) -> None:
        await failing.listen("hangs")
        retry = retrying(retry_on="connect-failure,refused-stream", **{timeout: "0.5s"})
        scene = await launch(options(failing, "fallback-override-host.yaml", retry))
        statuses = [reply.status for reply in await send_requests(scene, 30)]
        assert statuses.count(504) == failing.connections == FAILURES[Outcome.TIMEOUT]
        assert await ejected(scene) == {failing.address}


class TestEndpointThatResponds:
    @pytest.mark.parametrize("manner", [500, 503])
    async def test_is_ejected_after_server_errors(
        self, launch: Launch, failing: FailingEndpoint, manner: Manner
    ) -> None:
        await failing.listen(manner)
        scene = await launch(options(failing, "envoy.yaml"))
        statuses = [reply.status for reply in await send_requests(scene, 30)]
        assert statuses.count(int(manner)) == failing.connections == FAILURES[Outcome.ERROR]
        assert await ejected(scene) == {failing.address}

    @pytest.mark.parametrize("manner", [404, 422, 429])
    async def test_is_not_ejected_after_client_errors(
        self, launch: Launch, failing: FailingEndpoint, manner: Manner
    ) -> None:
        await failing.listen(manner)
        scene = await launch(options(failing, "envoy.yaml"))
        statuses = [reply.status for reply in await send_requests(scene, 30)]
        assert statuses.count(int(manner)) == failing.connections == 10
        assert await ejected(scene) == set()


async def test_requests_are_still_sent_if_all_endpoints_fail(
    launch: Launch, failing: FailingEndpoint
) -> None:
    await failing.listen(503)
    scene = await launch(options(failing, "envoy.yaml"))
    await scene.replicas.kill()
    replies = await send_requests(scene, 40)
    assert {reply.status for reply in replies} == {503}
    assert not any(b"no_endpoints" in reply.body for reply in replies)
    assert len(await ejected(scene)) == 1
    log = await scene.access_log(40)
    assert len({chosen_endpoint(line) for line in log[-20:]}) >= 2
