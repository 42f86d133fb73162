"""Among equals, a request that is warm on the endpoint with room goes first, within bounds."""

from __future__ import annotations

import pytest

from extproc.core.fleet.endpoint import Endpoint
from extproc.core.flow_control.line import _OVERTAKES_EACH
from extproc.core.flow_control.tenants import QUANTUM
from extproc.core.routing.catalog import Catalog, Model
from tests.core.flow_control.scene import Flow, Sent


def at_home(flow: Flow, address: str, number: int) -> list[str]:
    """Return prompts whose home is this endpoint."""
    found: list[str] = []
    for one in range(10_000):
        text = f"prompt {one}"
        resolved = flow.router.resolve(
            "llama", {"messages": [{"role": "user", "content": text}]}, {}
        )
        if flow.router.homes(resolved) == (address,):
            found.append(text)
        if len(found) == number:
            return found
    raise AssertionError("no such prompts")


def busy_flow() -> tuple[Flow, Sent, Sent]:
    """Return flow control with two busy endpoints, and their requests."""
    flow = Flow(strategy="PrefixHash", maxWaitSeconds=200)
    requests = {one.address: one for one in flow.fill()}
    return flow, requests[flow.endpoints[0]], requests[flow.endpoints[1]]


def test_a_request_goes_first_if_it_is_warm_on_the_endpoint_with_room() -> None:
    flow, _, on_second = busy_flow()
    cold = flow.send(at_home(flow, flow.endpoints[0], 1)[0])
    warm = flow.send(at_home(flow, flow.endpoints[1], 1)[0])
    on_second.end()
    flow.run()
    assert cold.waits
    assert warm.address == flow.endpoints[1]


def test_an_endpoint_with_little_load_serves_the_oldest_if_nothing_is_warm_there() -> None:
    flow, _, on_second = busy_flow()
    cold = flow.send(at_home(flow, flow.endpoints[0], 1)[0])
    on_second.end()
    flow.run()
    assert cold.address == flow.endpoints[1]


def test_a_loaded_endpoint_keeps_its_last_room_for_warm_requests() -> None:
    flow = Flow(strategy="PrefixHash", maxInflight=4, maxWaitSeconds=200)
    first = [flow.send(text) for text in at_home(flow, flow.endpoints[0], 4)]
    second = [flow.send(text) for text in at_home(flow, flow.endpoints[1], 8)[4:]]
    flow.run()
    cold = flow.send(at_home(flow, flow.endpoints[0], 6)[5])
    running = [one for one in (*first, *second) if one.address == flow.endpoints[1]]
    running[0].end()
    flow.run()
    assert cold.waits
    flow.now = 150.0
    flow.run()
    assert not cold.waits, "near its deadline, caches no longer matter"


def test_requests_whose_warm_endpoints_left_use_all_room() -> None:
    """As after a rollout, which replaces every endpoint."""
    flow = Flow(strategy="PrefixHash", maxInflight=8, maxWaitSeconds=200)
    for number in range(16):
        flow.send(f"filling {number}")
    waiting = [flow.send(f"prompt {number}") for number in range(20)]
    flow.endpoints = ["10.0.9.1:8000", "10.0.9.2:8000"]
    flow.publish()
    flow.run()
    assert sum(not one.waits for one in waiting) == 16


@pytest.mark.parametrize(("ahead", "first"), [(0.9, "warm"), (1.1, "cold")])
def test_a_warm_request_of_a_tenant_that_is_far_ahead_waits(ahead: float, first: str) -> None:
    flow, _, on_second = busy_flow()
    sent = {
        "cold": flow.send(at_home(flow, flow.endpoints[0], 1)[0], tenant="cold"),
        "warm": flow.send(at_home(flow, flow.endpoints[1], 1)[0], tenant="warm"),
    }
    tenants = flow.control.of("llama").queue.classes["default"].line.tenants
    tenants.charge("warm", ahead * QUANTUM)
    on_second.end()
    flow.run()
    assert [name for name, one in sent.items() if not one.waits] == [first]


def test_a_request_is_not_warm_on_an_endpoint_without_its_adapter() -> None:
    flow = Flow(strategy="PrefixHash", adapters=["sql"])
    first, second = flow.fill()
    base = flow.send(at_home(flow, first.address, 1)[0])
    assert base.home == first.address
    adapter = next(
        one
        for one in (flow.send(f"{n}", model="sql") for n in range(50))
        if one.home == second.address
    )
    model = flow.router.catalog.models["llama"]
    changed = [
        Endpoint(one.address, one.name) if one.address == second.address else one
        for one in model.snapshot.endpoints
    ]
    flow.router.publish(Catalog.of([Model.of(model.spec, model.strategy, changed)]))
    second.end()
    flow.run()
    assert adapter.waits
    assert not base.waits


def test_a_request_is_overtaken_a_limited_number_of_times() -> None:
    flow, _, running = busy_flow()
    cold = flow.send(at_home(flow, flow.endpoints[0], 1)[0])
    overtaken = 0
    warm = at_home(flow, flow.endpoints[1], 1)[0]
    while cold.waits:
        following = flow.send(warm)
        running.end()
        flow.run()
        running = following if cold.outcome is None else cold
        overtaken += cold.waits
    assert overtaken == 2 * _OVERTAKES_EACH


@pytest.mark.parametrize("endpoints", [2, 4])
def test_requests_with_one_popular_prefix_use_the_room_of_all_endpoints(endpoints: int) -> None:
    flow = Flow(endpoints=endpoints, strategy="PrefixHash", maxInflight=8, maxWaitSeconds=200)
    running = [flow.send("popular") for _ in range(8 * endpoints)]
    for _ in range(100):
        flow.send("popular")
    for one in running[::2]:
        one.end()
    flow.run()
    assert sum(flow.fleet.ledger.loads.values()) == 8 * endpoints


def test_warm_requests_of_any_tenant_go_before_cold_ones_of_many_tenants() -> None:
    flow = Flow(endpoints=2, strategy="PrefixHash", maxInflight=4, maxQueued=300)
    first, second = (at_home(flow, address, 1)[0] for address in flow.endpoints)
    running = [flow.send(name) for name in (first, second) * 4]
    cold = [flow.send(first, tenant=str(number)) for number in range(100)]
    warm = [flow.send(second, tenant=f"warm {number}") for number in range(100)]
    flow.control.of("llama").queue.classes["default"].line.tenants.charge("warm 0", 1e9)
    next(one for one in running if one.address == flow.endpoints[1]).end()
    flow.run()
    assert all(one.waits for one in cold)
    assert sum(not one.waits for one in warm) == 1


def test_few_requests_with_the_same_prefix_wait_for_their_endpoint() -> None:
    flow = Flow(endpoints=4, strategy="PrefixHash", maxInflight=8, maxWaitSeconds=200)
    running = [flow.send("popular") for _ in range(32)]
    waiting = [flow.send("popular") for _ in range(16)]
    home = waiting[0].home
    next(one for one in running if one.address != home).end()
    flow.run()
    assert all(one.waits for one in waiting)
    next(one for one in running if one.address == home).end()
    flow.run()
    assert not waiting[0].waits


LONG, OTHER, NEW = (letter * 2_000 for letter in "abc")
SHORT = "hello"


@pytest.mark.parametrize(
    ("waiting", "first"),
    [
        ([SHORT, OTHER], SHORT),
        ([LONG, SHORT, OTHER], SHORT),
        ([LONG, OTHER, SHORT], OTHER),
        ([NEW, OTHER], OTHER),
        ([NEW, SHORT], NEW),
    ],
)
def test_a_prompt_that_no_cache_can_have_is_not_overtaken_because_of_caches(
    waiting: list[str], first: str
) -> None:
    flow = Flow(strategy="PrefixCache", maxWaitSeconds=200)
    running = {one.address: one for one in (flow.send(LONG), flow.send(OTHER))}
    sent = [flow.send(prompt) for prompt in waiting]
    running[flow.sent[1].address].end()
    flow.run()
    assert [one.name for one in sent if not one.waits] == [first]
