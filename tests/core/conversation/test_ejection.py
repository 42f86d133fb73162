"""Response headers decide which endpoints are ejected."""

from __future__ import annotations

import json
from functools import partial
from random import Random
from typing import get_args

import pytest

from extproc.core.conversation.events import Event, Kind
from extproc.core.conversation.state_machine import Conversation
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.outcome import Outcome
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from extproc.core.schema import ModelSpec, StrategyName
from extproc.core.strategies import build
from tests.core.builders import balancing, model_spec, split_spec
from tests.core.clock import Clock

ADDRESSES = tuple(f"10.0.0.{i}:8000" for i in (1, 2, 3, 4))
FAILING = ADDRESSES[0]
STRATEGIES = pytest.mark.parametrize("strategy", get_args(StrategyName))


class Gateway:
    """Envoy with the sidecar, and a client that never repeats a prompt."""

    def __init__(self, strategy: str = "PrefixHash", *more: ModelSpec, endpoints: int = 4) -> None:
        self.clock = Clock()
        fleet = Fleet(self.clock)
        signals = fleet.signals
        signals.set_endpoints(ADDRESSES)
        self.addresses = ADDRESSES[:endpoints]
        spec = model_spec("llama", endpoints=self.addresses)
        spec = spec.model_copy(update={"load_balancing": balancing(strategy)})
        make = partial(build, rng=Random(0), signals=signals)
        catalog = revise(Catalog(), [spec, *more], make)
        self.router = Router(fleet, catalog)
        self.asked = 0

    def request(self, model: str = "llama") -> tuple[Conversation, Decision]:
        """Send a request, and return its conversation and decision."""
        self.asked += 1
        body = json.dumps({"model": model, "prompt": f"{self.asked} bottles"}).encode()
        conversation = Conversation(self.router, Random(0))
        named = {":method": b"POST", ":path": b"/v1/completions"}
        conversation.receive(Event(Kind.REQUEST_HEADERS, headers=named))
        conversation.receive(Event(Kind.REQUEST_BODY, body=body, end_of_stream=True))
        assert isinstance(conversation.verdict, Decision)
        return conversation, conversation.verdict

    def answered(
        self,
        served_by: str | None = None,
        outcome: Outcome | None = Outcome.SERVED,
        attempts: int = 0,
        model: str = "llama",
    ) -> str:
        """Send a request, respond from `served_by` or the chosen endpoint, and return that."""
        conversation, decision = self.request(model)
        chosen = decision.address
        by = chosen if served_by is None else served_by
        answer = Event(Kind.RESPONSE_HEADERS, served_by=by, outcome=outcome, attempts=attempts)
        conversation.receive(answer)
        conversation.close()
        return chosen

    def until_chosen(self, address: str = FAILING) -> tuple[Conversation, Decision]:
        """Send requests until one goes to this endpoint; the others are served."""
        for _ in range(500):
            conversation, decision = self.request()
            if decision.address == address:
                return conversation, decision
            conversation.close()
        raise AssertionError(f"nothing goes to {address}")

    def fail(self, address: str = FAILING, times: int = 3) -> None:
        """Send requests that fail there and are served by their fallback."""
        for _ in range(times):
            conversation, decision = self.until_chosen(address)
            assert decision.fallback is not None
            retried = Event(
                Kind.RESPONSE_HEADERS,
                served_by=decision.fallback,
                outcome=Outcome.SERVED,
                attempts=2,
            )
            conversation.receive(retried)
            conversation.close()

    def tried(self, requests: int = 100) -> set[str]:
        """Return the endpoints of this number of served requests."""
        return {self.answered() for _ in range(requests)}

    @property
    def ejected(self) -> set[str]:
        return set(self.router.fleet.ejection.ejected)


class TestFailingEndpoint:
    @STRATEGIES
    def test_is_avoided_by_every_strategy(self, strategy: str) -> None:
        gateway = Gateway(strategy)
        gateway.fail()
        assert gateway.ejected == {FAILING}
        assert gateway.tried() == set(ADDRESSES[1:])

    @STRATEGIES
    def test_gets_one_trial_from_every_strategy(self, strategy: str) -> None:
        gateway = Gateway(strategy)
        gateway.fail()
        gateway.clock.advance(5)
        conversation, decision = gateway.until_chosen()
        assert gateway.tried() == set(ADDRESSES[1:])
        answer = Event(Kind.RESPONSE_HEADERS, served_by=FAILING, outcome=Outcome.SERVED)
        conversation.receive(answer)
        conversation.close()
        assert gateway.ejected == set()
        assert gateway.tried() == set(ADDRESSES)
        assert decision.fallback in ADDRESSES[1:]

    def test_is_not_a_fallback_either(self) -> None:
        gateway = Gateway()
        gateway.fail()
        fallbacks = {gateway.request()[1].fallback for _ in range(100)}
        assert fallbacks == set(ADDRESSES[1:])

    def test_is_the_fallback_of_the_only_other_endpoint(self) -> None:
        gateway = Gateway(endpoints=2)
        gateway.fail()
        _, decision = gateway.request()
        assert (decision.address, decision.fallback) == (ADDRESSES[1], FAILING)
        assert decision.candidates == 1

    def test_returns_after_it_served_a_retry(self) -> None:
        gateway = Gateway(endpoints=2)
        gateway.fail()
        gateway.answered(served_by=FAILING, attempts=2)
        assert gateway.ejected == set()

    def test_keeps_its_requests(self) -> None:
        gateway = Gateway("Random")
        running, _ = gateway.until_chosen()
        gateway.fail()
        assert gateway.router.fleet.ledger.loads[FAILING] == 1
        running.close()
        assert FAILING not in gateway.router.fleet.ledger.loads

    def test_is_ejected_for_longer_after_a_failed_trial(self) -> None:
        gateway = Gateway()
        gateway.fail()
        gateway.clock.advance(5)
        gateway.fail(times=1)
        gateway.clock.advance(9.9)
        assert gateway.tried() == set(ADDRESSES[1:])
        gateway.clock.advance(0.1)
        gateway.until_chosen()

    def test_gets_another_trial_if_the_client_gave_up(self) -> None:
        gateway = Gateway()
        gateway.fail()
        gateway.clock.advance(5)
        conversation, _ = gateway.until_chosen()
        conversation.close()
        assert gateway.tried() == set(ADDRESSES[1:])
        gateway.clock.advance(5)
        gateway.until_chosen()


class TestResponse:
    @pytest.mark.parametrize("outcome", [Outcome.ERROR, Outcome.TIMEOUT, Outcome.RESET])
    def test_ejects_after_consecutive_failures(self, outcome: Outcome) -> None:
        gateway = Gateway("RoundRobin", endpoints=2)
        while not gateway.ejected:
            gateway.answered(outcome=outcome if gateway.asked % 2 else Outcome.SERVED)
        assert len(gateway.ejected) == 1

    @pytest.mark.parametrize("outcome", [Outcome.SERVED, None])
    def test_does_not_eject_without_a_failure(self, outcome: Outcome | None) -> None:
        gateway = Gateway()
        for _ in range(100):
            gateway.answered(outcome=outcome)
        assert gateway.ejected == set()

    def test_does_not_eject_without_an_address(self) -> None:
        gateway = Gateway()
        for _ in range(100):
            gateway.answered(served_by="", outcome=Outcome.ERROR)
        assert gateway.ejected == set()

    def test_of_another_endpoint_on_the_first_attempt_spares_the_chosen_one(self) -> None:
        gateway = Gateway()
        for _ in range(100):
            gateway.answered(served_by="10.9.9.9:1", attempts=1)
        assert gateway.ejected == set()

    def test_of_an_unknown_endpoint_counts_only_after_several_attempts(
        self,
    ) -> None:
        gateway = Gateway(endpoints=2)
        for _ in range(20):
            gateway.answered(served_by="10.9.9.9:1")
        assert gateway.ejected == set()
        for _ in range(20):
            gateway.answered(served_by="10.9.9.9:1", attempts=2)
        assert len(gateway.ejected) == 1

    @pytest.mark.parametrize("attempts", [0, 2])
    def test_of_the_fallback_counts_against_the_chosen_one(self, attempts: int) -> None:
        gateway = Gateway("RoundRobin", endpoints=3)
        while not gateway.ejected:
            conversation, decision = gateway.request()
            refused = decision.address == FAILING
            by = decision.fallback if refused and decision.fallback else decision.address
            conversation.receive(
                Event(
                    Kind.RESPONSE_HEADERS,
                    served_by=by,
                    outcome=Outcome.SERVED,
                    attempts=attempts if refused else min(attempts, 1),
                )
            )
        assert gateway.ejected == {FAILING}
        assert gateway.asked <= 9

    def test_of_a_failed_fallback_counts_against_both(self) -> None:
        gateway = Gateway(endpoints=3)
        for _ in range(3):
            conversation, _ = gateway.until_chosen()
            answer = Event(
                Kind.RESPONSE_HEADERS, served_by=ADDRESSES[1], outcome=Outcome.RESET, attempts=2
            )
            conversation.receive(answer)
        gateway.clock.advance(5)
        ejection = gateway.router.fleet.ejection
        ejection.record(FAILING, Outcome.SERVED, ejection.chosen(FAILING))
        ejection.record(ADDRESSES[1], Outcome.RESET)
        assert gateway.ejected == {ADDRESSES[1]}


class TestAllFailing:
    @STRATEGIES
    @pytest.mark.parametrize("endpoints", [1, 2, 3, 4])
    def test_requests_are_still_routed(self, strategy: str, endpoints: int) -> None:
        gateway = Gateway(strategy, endpoints=endpoints)
        for _ in range(200):
            gateway.answered(outcome=Outcome.ERROR)
            assert len(gateway.ejected) <= endpoints // 2
        assert gateway.tried() <= set(gateway.addresses)

    def test_split_keeps_the_target(self) -> None:
        other = model_spec("other", endpoints=["10.0.1.1:8000"])
        gateway = Gateway("PrefixHash", other, split_spec(llama=1, other=0), endpoints=2)
        gateway.fail()
        for _ in range(20):
            assert gateway.answered(model="canary") in gateway.addresses


def test_nothing_is_ejected_without_failures() -> None:
    gateway = Gateway()
    assert gateway.tried() == set(ADDRESSES)
    assert gateway.ejected == set()
    assert gateway.request()[1].ejected is None
