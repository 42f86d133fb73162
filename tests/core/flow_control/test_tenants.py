"""Tenants of a class get equal shares of tokens."""

from __future__ import annotations

from collections import Counter

from tests.core.flow_control.scene import Flow


def served(flow: Flow, steps: int) -> Counter[str]:
    """Serve requests one by one, and count them by tenant, which is the name's first word."""
    counts: Counter[str] = Counter()
    for _ in range(steps):
        flow.run()
        (running,) = [one for one in flow.sent if not one.waits and not one.ended]
        counts[running.name.split()[0]] += 1
        running.end()
    return counts


def crowd(flow: Flow, tenant: str, number: int, tokens: float = 1000.0) -> None:
    for one in range(number):
        flow.send(f"{tenant} {one}", tenant=tenant, tokens=tokens)


def test_a_loud_tenant_gets_no_more_than_a_quiet_one() -> None:
    flow = Flow(endpoints=1)
    flow.fill()
    crowd(flow, "loud", 100)
    crowd(flow, "quiet", 20)
    counts = served(flow, 41)
    assert abs(counts["loud"] - counts["quiet"]) <= 1


def test_tokens_count_and_not_requests() -> None:
    flow = Flow(endpoints=1)
    flow.fill()
    crowd(flow, "long", 50, tokens=4000)
    crowd(flow, "short", 50, tokens=1000)
    counts = served(flow, 41)
    assert 3.5 <= counts["short"] / counts["long"] <= 4.5


def test_an_idle_tenant_saves_up_no_credit() -> None:
    flow = Flow(endpoints=1)
    flow.fill()
    crowd(flow, "busy", 200)
    crowd(flow, "other", 100)
    served(flow, 100)
    crowd(flow, "late", 50)
    counts = served(flow, 30)
    assert counts["late"] <= 11


def test_a_new_tenant_that_comes_after_a_pause_saves_up_no_credit() -> None:
    flow = Flow(endpoints=1)
    (running,) = flow.fill()
    crowd(flow, "busy", 100)
    running.end()
    served(flow, 100)
    (last,) = [flow.send("busy 100", tenant="busy")]
    crowd(flow, "new", 20)
    crowd(flow, "busy", 20)
    last.end()
    counts = served(flow, 20)
    assert abs(counts["new"] - counts["busy"]) <= 2, counts


def test_what_was_served_while_nothing_waited_does_not_count() -> None:
    """Otherwise a tenant that used an idle fleet all day would starve when another one comes."""
    flow = Flow(endpoints=1)
    for _ in range(100):
        flow.send("busy", tenant="busy", tokens=100_000).end()
    (running,) = flow.fill()
    crowd(flow, "new", 50)
    crowd(flow, "busy", 50)
    running.end()
    counts = served(flow, 40)
    assert abs(counts["new"] - counts["busy"]) <= 2, counts


def test_responses_count_by_their_time() -> None:
    flow = Flow(endpoints=1, maxWaitSeconds=290)
    (busy,) = flow.fill()
    slow = [flow.send(f"slow {one}", tenant="slow", tokens=100) for one in range(3)]
    quick = [flow.send(f"quick {one}", tenant="quick", tokens=100) for one in range(3)]
    busy.end()
    flow.run()
    assert not slow[0].waits
    flow.now += 10.0
    slow[0].end()
    for one in quick:
        flow.run()
        assert not one.waits
        one.end()


def test_many_tenants_are_forgotten_when_idle() -> None:
    flow = Flow(endpoints=1)
    (busy,) = flow.fill()
    busy.end()
    for one in range(5000):
        flow.send(tenant=str(one)).end()
    tenants = flow.control.of("llama").queue.classes["default"].line.tenants
    assert len(tenants) <= 2048


def test_one_step_does_not_read_every_tenant() -> None:
    """The next tenant comes from a heap, and out-of-date entries do not pile up."""
    flow = Flow(endpoints=1, maxQueued=5000)
    flow.fill()
    for one in range(2000):
        flow.send(tenant=str(one))
    tenants = flow.control.of("llama").queue.classes["default"].line.tenants
    for _ in range(20_000):
        tenants.charge("7", 1.0)
    assert len(tenants._in_queue.entries) <= 4 * len(tenants) + 65


def test_a_tenant_with_requests_in_flight_goes_first_if_it_was_served_less() -> None:
    flow = Flow(endpoints=3, maxWaitSeconds=290)
    (long,) = [flow.send("quiet", tenant="quiet", tokens=10)]
    crowd(flow, "loud", 20)
    running = [one for one in flow.sent if not one.waits and one is not long]
    for _ in range(4):
        running.pop().end()
        flow.run()
        running = [one for one in flow.sent if not one.waits and not one.ended and one is not long]
    quiet = [flow.send(f"quiet {one}", tenant="quiet", tokens=1000) for one in range(3)]
    for _ in range(3):
        running.pop(0).end()
        flow.run()
        running = [one for one in flow.sent if not one.waits and not one.ended and one is not long]
    assert not any(one.waits for one in quiet)


def test_the_credit_of_a_tenant_is_bounded() -> None:
    flow = Flow(endpoints=2, maxWaitSeconds=290)
    flow.send("quiet", tenant="quiet", tokens=10)
    crowd(flow, "loud", 200)
    for _ in range(100):
        next(
            one for one in flow.sent if one.name[0] == "l" and not one.waits and not one.ended
        ).end()
        flow.run()
    quiet = [flow.send(f"quiet {one}", tenant="quiet", tokens=1000) for one in range(60)]
    for _ in range(50):
        next(one for one in flow.sent[1:] if not one.waits and not one.ended).end()
        flow.run()
    served = sum(not one.waits for one in quiet)
    assert 20 <= served <= 40, "20,000 tokens are 20 requests, and the others take turns"


def test_some_room_stays_free_for_a_tenant_that_was_served_less() -> None:
    flow = Flow(endpoints=1, maxInflight=16, maxWaitSeconds=100)
    quiet = flow.send("quiet", tenant="quiet", tokens=10)
    loud = [flow.send("loud", tenant="loud") for _ in range(15)]
    flow.run()
    assert sum(one.waits for one in loud) == 1
    again = flow.send("quiet again", tenant="quiet", tokens=10)
    flow.run()
    assert not again.waits
    quiet.end()
    again.end()
    flow.run()
    assert not any(one.waits for one in loud)
