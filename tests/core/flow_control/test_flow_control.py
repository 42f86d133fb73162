"""Requests wait while no endpoint has room, and get one outcome."""

from __future__ import annotations

import pytest

from extproc.core.fleet.outcome import Outcome
from extproc.core.request.refusals import QueueFull, QueueTimeout
from extproc.core.routing.decision import Decision
from tests.core.flow_control.scene import MODEL, Flow, Sent


def saturation(flow: Flow) -> float:
    """Return the saturation of the model."""
    model = flow.router.catalog.models["llama"]
    return flow.control.room.saturation(flow.control.of("llama"), model)


def serve(flow: Flow, busy: Sent, requests: int, *, seconds: float) -> None:
    """Serve requests one after another on the only endpoint, each for this long."""
    for _ in range(requests):
        flow.now += seconds
        following = flow.send("following")
        busy.end()
        flow.run()
        busy = following


class TestRoom:
    def test_requests_are_decided_at_once_while_there_is_room(self) -> None:
        flow = Flow(endpoints=3)
        assert len({sent.address for sent in flow.fill()}) == 3

    def test_a_request_without_room_waits_and_is_dispatched_when_one_ends(self) -> None:
        flow = Flow()
        first, _ = flow.fill()
        waiting = flow.send("waiting")
        flow.run()
        assert waiting.waits
        flow.now = 3.0
        flow.woken = 0
        first.end()
        assert flow.woken
        flow.run()
        assert waiting.address == first.address
        assert isinstance(waiting.outcome, Decision)
        assert waiting.outcome.wait is not None
        assert waiting.outcome.wait.seconds == 3.0

    def test_no_endpoint_gets_more_than_its_limit(self) -> None:
        flow = Flow(endpoints=4, strategy="PrefixHash", maxInflight=2)
        sent = [flow.send("the same prompt") for _ in range(20)]
        flow.run()
        assert set(flow.fleet.ledger.loads.values()) == {2}
        assert sum(one.waits for one in sent) == 12

    def test_the_fallback_is_another_endpoint_even_if_it_has_no_room(self) -> None:
        flow = Flow()
        first, second = flow.fill()
        waiting = flow.send("waiting")
        first.end()
        flow.run()
        assert isinstance(waiting.outcome, Decision)
        assert waiting.outcome.fallback == second.address

    def test_the_fallback_is_no_ejected_endpoint(self) -> None:
        flow = Flow(endpoints=3, maxInflight=2)
        for _ in range(3):
            flow.fleet.ejection.record(flow.endpoints[0], Outcome.RESET)
        decisions = [flow.send(str(one)).outcome for one in range(4)]
        for one in decisions:
            assert isinstance(one, Decision)
            assert {one.address, one.fallback} == set(flow.endpoints[1:])

    def test_the_first_endpoint_with_room_is_enough(self) -> None:
        flow = Flow(endpoints=4, maxInflight=None)
        busy = [flow.send(tenant, tenant=tenant) for tenant in ("a", "b")]
        prompts = flow.control.room.limits.prompts
        last = max(set(flow.endpoints) - {one.address for one in busy})
        prompts.sent(last, 9_000.0, flow.now)
        for one in busy:
            one.end()
        assert isinstance(flow.send("next", tenant="a").outcome, Decision)
        assert not prompts._of(last).is_short

    def test_an_endpoint_without_metrics_does_not_stay_full_of_others_requests(self) -> None:
        flow = Flow(endpoints=1, maxInflight=64)
        flow.scrape(*flow.endpoints, running=100.0, waiting=30.0)
        waiting = flow.send("waiting")
        flow.run()
        assert waiting.waits
        flow.now += 11.0
        flow.run()
        assert not waiting.waits

    def test_requests_wait_until_the_first_endpoint_is_ready(self) -> None:
        flow = Flow(endpoints=0)
        waiting = flow.send("waiting")
        flow.run()
        assert waiting.waits
        flow.set_endpoints(1)
        assert flow.woken
        flow.run()
        assert waiting.address == "10.0.0.1:8000"

    def test_a_request_that_is_cancelled_is_never_released(self) -> None:
        flow = Flow()
        first, _ = flow.fill()
        waiting = flow.send("waiting")
        assert waiting.waiter is not None
        flow.control.cancel(waiting.waiter)
        flow.control.cancel(waiting.waiter)
        first.end()
        flow.run()
        assert waiting.releases == 0
        assert flow.control.waiting == 0

    def test_a_forced_request_does_not_need_room(self) -> None:
        flow = Flow()
        flow.fill()
        waiting = flow.send("waiting")
        assert waiting.waiter is not None
        flow.control.force(waiting.waiter)
        flow.run()
        assert isinstance(waiting.outcome, Decision)

    def test_a_sidecar_leaves_room_to_peers_if_it_has_more_than_its_share(self) -> None:
        flow = Flow(endpoints=1, maxInflight=16)
        flow.control.room.peers = lambda: 1
        sent = [flow.send(str(one)) for one in range(16)]
        assert sum(one.waits for one in sent) == 1

    def test_without_peers_nothing_is_left(self) -> None:
        flow = Flow(endpoints=1, maxInflight=16)
        assert not any(flow.send(str(one)).waits for one in range(16))


class TestOrder:
    def test_requests_are_dispatched_in_the_order_of_their_arrival(self) -> None:
        flow = Flow(endpoints=1)
        (busy,) = flow.fill()
        waiting = [flow.send(str(one)) for one in range(5)]
        busy.end()
        for one in waiting:
            flow.run()
            one.end()
        assert flow.order == ["0", "1", "2", "3", "4"]

    def test_a_new_request_does_not_overtake_those_that_wait(self) -> None:
        flow = Flow(endpoints=1)
        (busy,) = flow.fill()
        first = flow.send("first")
        busy.end()
        second = flow.send("second")
        flow.run()
        assert not first.waits
        assert second.waits

    def test_higher_classes_go_first(self) -> None:
        classes = [{"name": "batch", "priority": -1}, {"name": "chat", "priority": 1}]
        flow = Flow(endpoints=1, classes=classes)
        (busy,) = flow.fill()
        for objective in ("batch", "", "chat", "unknown", "chat"):
            flow.send(objective, objective=objective)
        busy.end()
        while flow.control.waiting:
            flow.run()
            next(one for one in flow.sent if not one.waits and not one.ended).end()
        assert flow.order == ["chat", "chat", "", "unknown", "batch"]

    def test_the_class_default_has_the_requests_without_a_known_class(self) -> None:
        classes = [{"name": "default", "priority": 3, "maxQueued": 1}]
        flow = Flow(classes=classes)
        flow.fill()
        assert flow.send("unknown", objective="unknown").waits
        assert flow.control.of("llama").queue.classes["default"].priority == 3
        assert flow.send("none").code == "queue_full"

    def test_an_objective_of_kubernetes_is_a_class(self) -> None:
        flow = Flow(endpoints=1)
        flow.control.set_objectives({"llama": {"urgent": 7}})
        (busy,) = flow.fill()
        flow.send("usual")
        urgent = flow.send("urgent", objective="urgent")
        busy.end()
        flow.run()
        assert isinstance(urgent.outcome, Decision)
        assert urgent.outcome.wait is not None
        assert urgent.outcome.wait.priority == 7

    def test_some_room_stays_free_for_a_higher_class_that_sends_requests(self) -> None:
        classes = [{"name": "batch", "priority": -1}]
        flow = Flow(endpoints=1, maxInflight=16, maxWaitSeconds=100, classes=classes)
        flow.send("chat").end()
        batch = [flow.send("batch", objective="batch") for _ in range(16)]
        flow.run()
        assert sum(one.waits for one in batch) == 1
        chat = flow.send("chat")
        flow.run()
        assert not chat.waits
        flow.now = 61.0
        flow.run()
        assert sum(one.waits for one in batch) == 1
        chat.end()
        flow.run()
        assert not any(one.waits for one in batch)

    def test_adapters_do_not_wait_for_each_other(self) -> None:
        flow = Flow(adapters=["sql"])
        flow.fill()
        waiting = flow.send("base")
        adapter = flow.send("adapter", model="sql")
        flow.sent[0].end()
        flow.sent[1].end()
        flow.run()
        assert not waiting.waits
        assert not adapter.waits


class TestBounds:
    def test_a_full_queue_refuses(self) -> None:
        flow = Flow(maxQueued=2)
        flow.fill()
        assert flow.send("1").waits
        assert flow.send("2").waits
        refused = flow.send("3").outcome
        assert isinstance(refused, QueueFull)
        assert refused.retry_after >= 1

    def test_a_class_has_its_own_bounds(self) -> None:
        classes = [{"name": "batch", "maxQueued": 1, "maxWaitSeconds": 5}]
        flow = Flow(classes=classes)
        flow.fill()
        batch = flow.send("batch", objective="batch")
        assert flow.send("batch", objective="batch").code == "queue_full"
        assert batch.waits
        chat = flow.send("chat")
        flow.now = 5.0
        flow.run()
        assert batch.code == "queue_timeout"
        assert chat.waits
        flow.now = 60.0
        flow.run()
        assert chat.code == "queue_timeout"

    def test_a_full_class_makes_no_space_in_others(self) -> None:
        classes = [{"name": "low", "priority": -1}, {"name": "chat", "maxQueued": 1}]
        flow = Flow(classes=classes)
        flow.fill()
        low = flow.send("low", objective="low")
        assert flow.send("chat", objective="chat").waits
        assert flow.send("chat", objective="chat").code == "queue_full"
        assert low.waits

    def test_the_newest_of_the_lowest_negative_class_makes_space(self) -> None:
        classes = [{"name": "low", "priority": -2}, {"name": "batch", "priority": -1}]
        flow = Flow(maxQueued=3, classes=classes)
        flow.fill()
        low = [flow.send(f"low {one}", objective="low") for one in range(2)]
        batch = flow.send("batch", objective="batch")
        assert flow.send("chat").waits
        assert [one.code for one in low] == ["", "queue_full"]
        assert flow.send("chat").waits
        assert low[0].code == "queue_full"
        assert flow.send("batch", objective="batch").code == "queue_full"
        assert flow.send("chat").waits
        assert batch.code == "queue_full"
        assert flow.send("chat").code == "queue_full"

    @pytest.mark.parametrize(("timeout", "refused"), [(4.0, True), (6.0, False)])
    def test_a_request_that_would_be_too_late_is_refused_at_once(
        self, timeout: float, refused: bool
    ) -> None:
        flow = Flow(endpoints=1)
        (busy,) = flow.fill()
        serve(flow, busy, 40, seconds=1.0)
        for one in range(5):
            flow.send(f"ahead {one}")
        late = flow.send("late", timeout=timeout)
        assert (late.code == "queue_timeout") is refused

    def test_a_timeout_longer_than_the_longest_wait_is_compared_with_the_estimate(self) -> None:
        flow = Flow(endpoints=1, maxWaitSeconds=5)
        (busy,) = flow.fill()
        serve(flow, busy, 40, seconds=1.0)
        for one in range(20):
            flow.send(f"ahead {one}")
        assert flow.send("late", timeout=10.0).code == "queue_timeout"
        assert flow.send("patient", timeout=60.0).waits

    def test_an_old_rate_refuses_no_request(self) -> None:
        """After a pause or an outage, it says nothing about the wait."""
        flow = Flow(endpoints=1)
        for one in flow.fill():
            one.end()
        flow.now = 100.0
        flow.set_endpoints(0)
        waiting = [flow.send("waiting", timeout=20.0) for _ in range(3)]
        flow.now = 101.0
        flow.set_endpoints(3)
        flow.run()
        assert not any(one.waits for one in waiting)
        assert all(isinstance(one.outcome, Decision) for one in waiting)

    def test_the_clients_timeout_limits_the_wait(self) -> None:
        flow = Flow()
        flow.fill()
        waiting = flow.send("waiting", timeout=2.0)
        flow.now = 1.9
        flow.run()
        assert waiting.waits
        flow.now = 2.0
        flow.run()
        assert isinstance(waiting.outcome, QueueTimeout)

    def test_retry_after_estimates_the_time_of_the_queue(self) -> None:
        flow = Flow(endpoints=1, maxQueued=40)
        (busy,) = flow.fill()
        serve(flow, busy, 60, seconds=0.5)
        for one in range(40):
            flow.send(str(one))
        refused = flow.send("refused").outcome
        assert isinstance(refused, QueueFull)
        assert 18 <= refused.retry_after <= 24


class TestChanges:
    def test_a_higher_limit_dispatches_what_waits(self) -> None:
        flow = Flow()
        flow.fill()
        waiting = [flow.send(str(one)) for one in range(4)]
        flow.flow = {"maxInflight": 3}
        flow.publish()
        flow.run()
        assert not any(one.waits for one in waiting)

    def test_without_flow_control_nothing_waits(self) -> None:
        flow = Flow()
        flow.fill()
        waiting = [flow.send(str(one)) for one in range(4)]
        flow.flow = None
        flow.publish()
        flow.run()
        assert all(isinstance(one.outcome, Decision) for one in waiting)

    def test_a_removed_model_refuses_what_waits(self) -> None:
        flow = Flow()
        flow.fill()
        waiting = flow.send("waiting")
        flow.publish(name="other")
        flow.run()
        assert waiting.code == "model_not_found"

    def test_what_waits_goes_to_the_model_that_took_the_name(self) -> None:
        flow = Flow(endpoints=1)
        (busy,) = flow.fill()
        waiting = [flow.send(str(one)) for one in range(100)]
        flow.publish(name="other", aliases=[MODEL])
        flow.run()
        assert all(one.waits for one in waiting), "the limit holds for the other model too"
        assert flow.control.waiting == 100
        busy.end()
        flow.run()
        first, *others = waiting
        assert isinstance(first.outcome, Decision)
        assert (first.outcome.model, first.outcome.rename) == ("other", "other")
        assert first.outcome.wait is not None
        first.end()
        flow.run()
        assert [one.waits for one in others] == [False, *[True] * 98]

    def test_what_waits_keeps_its_deadline_in_another_queue(self) -> None:
        flow = Flow(endpoints=1, maxWaitSeconds=10)
        flow.fill()
        waiting = flow.send("waiting")
        flow.now = 9.0
        flow.publish(name="other", aliases=[MODEL])
        flow.run()
        assert waiting.waits
        flow.now = 10.5
        flow.run()
        assert waiting.code == "queue_timeout"
        assert flow.control.waiting == 0

    def test_what_leaves_is_forgotten_by_the_other_queue(self) -> None:
        flow = Flow(endpoints=1)
        flow.fill()
        waiting = flow.send("waiting")
        flow.publish(name="other", aliases=[MODEL])
        flow.run()
        assert waiting.waiter is not None
        flow.control.cancel(waiting.waiter)
        assert flow.control.waiting == 0

    def test_what_waits_is_dispatched_if_the_other_model_has_no_flow_control(self) -> None:
        flow = Flow(endpoints=1)
        flow.fill()
        waiting = [flow.send(str(one)) for one in range(100)]
        flow.flow = None
        flow.now = 2.0
        flow.publish(name="other", aliases=[MODEL])
        flow.run()
        for one in waiting:
            assert isinstance(one.outcome, Decision)
            assert one.outcome.wait is not None
            assert one.outcome.wait.seconds == 2.0

    def test_what_needs_another_body_is_refused_if_its_body_was_not_kept(self) -> None:
        flow = Flow(endpoints=1)
        flow.fill()
        kept, dropped = flow.send("kept"), flow.send("dropped")
        assert dropped.waiter is not None
        dropped.waiter.keeps_body = False
        flow.publish(name="other", aliases=[MODEL])
        flow.run()
        assert dropped.code == "model_changed"
        assert kept.waits

    def test_an_endpoint_that_left_gets_nothing(self) -> None:
        flow = Flow(endpoints=2, strategy="PrefixHash")
        flow.fill()
        waiting = [flow.send(str(one)) for one in range(8)]
        for one in flow.sent[:2]:
            one.end()
        flow.set_endpoints(1)
        flow.run()
        assert [one.address for one in waiting if not one.waits] == ["10.0.0.1:8000"]

    def test_other_priorities_take_effect_for_what_waits(self) -> None:
        flow = Flow(endpoints=1, classes=[{"name": "batch", "priority": -1}])
        (busy,) = flow.fill()
        usual = flow.send("usual")
        batch = flow.send("batch", objective="batch")
        assert flow.flow is not None
        flow.flow["classes"] = [{"name": "batch", "priority": 1}]
        flow.publish()
        busy.end()
        flow.run()
        assert not batch.waits
        flow.control.set_objectives({"llama": {"batch": 1}})
        flow.flow["classes"] = []
        flow.publish()
        another = flow.send("another", objective="batch")
        flow.control.set_objectives({"llama": {"batch": -1}})
        batch.end()
        flow.run()
        assert not usual.waits
        assert another.waits

    def test_a_removed_adapter_refuses_what_waits(self) -> None:
        flow = Flow(endpoints=1, adapters=["sql", "other"])
        flow.fill()
        waiting = [flow.send(name, model=name) for name in ("sql", "other", "llama")]
        flow.adapters = ["other"]
        flow.publish()
        assert [one.code for one in waiting] == ["model_not_found", "", ""]

    def test_without_endpoints_a_found_adapter_may_come_back(self) -> None:
        flow = Flow(endpoints=1, adapters=["sql"])
        flow.fill()
        waiting = flow.send("waiting", model="sql")
        flow.adapters = []
        flow.set_endpoints(0)
        assert waiting.waits
        flow.adapters = ["sql"]
        flow.set_endpoints(2)
        flow.run()
        assert not waiting.waits

    def test_a_drain_refuses_what_waits_and_what_would_wait(self) -> None:
        flow = Flow()
        flow.fill()
        waiting = flow.send("waiting")
        flow.control.drain()
        assert waiting.code == "queue_timeout"
        assert flow.send("late").code == "queue_timeout"


class TestSaturation:
    def test_saturation_is_the_load_and_the_queue_over_the_limits(self) -> None:
        flow = Flow(endpoints=2, maxInflight=2)
        assert saturation(flow) == 0.0
        for one in range(6):
            flow.send(str(one))
        assert saturation(flow) == 1.5

    def test_without_endpoints_it_is_the_queue(self) -> None:
        flow = Flow(endpoints=0)
        for one in range(3):
            flow.send(str(one))
        assert saturation(flow) == 3.0
