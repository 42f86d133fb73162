from __future__ import annotations

from extproc.adapters.observability.state import (
    ModelState,
    SignalsState,
    endpoint_statuses,
    model_states,
)
from extproc.core.fleet.endpoint import Endpoint
from extproc.core.fleet.fleet import Fleet
from extproc.core.fleet.outcome import Outcome
from extproc.core.fleet.report import Load, Report
from extproc.core.routing.decision import Decision
from extproc.core.routing.router import Router
from tests.core.builders import TWO_ADDRESSES, by_service, catalog, model_spec, router
from tests.core.flow_control.scene import Flow


def decide(serving: Router, model: str) -> Decision:
    return serving.decide(serving.resolve(model, None, {}))


def test_shows_every_model_with_its_endpoints() -> None:
    serving = router(model_spec(adapters=["sql", "law"], strategy="LeastLoad"))
    decided = decide(serving, "llama")
    loads = {decided.address: 1}
    assert model_states(serving.fleet, serving.catalog) == {
        "llama": {
            "strategy": "LeastLoad",
            "adapters": ["law", "sql"],
            "endpoints": [
                {
                    "address": address,
                    "name": address,
                    "inflight": loads.get(address, 0),
                    "state": "ready",
                    "adapters": ["law", "sql"],
                    "signals": None,
                }
                for address in ("10.0.0.1:8000", "10.0.0.2:8000")
            ],
        }
    }


def test_shows_the_requests_of_all_sidecars_if_they_share_their_state() -> None:
    serving = router(model_spec(endpoints=["10.0.0.1:8000", "10.0.0.2:8000"]))
    endpoint = serving.fleet.endpoints["10.0.0.1:8000"]
    serving.fleet.ledger.acquire("llama", endpoint)
    for _ in range(2):
        serving.fleet.ledger.acquire("llama", endpoint, ours=False)
    states = model_states(serving.fleet, serving.catalog, with_fleet=True)
    shown = [(one["inflight"], one["inflight_fleet"]) for one in states["llama"]["endpoints"]]
    assert shown == [(1, 3), (0, 0)]


def test_shows_pod_name_of_discovered_endpoint() -> None:
    spec = by_service(adapters=["sql"])
    serving = router(spec)
    assert model_states(serving.fleet, serving.catalog)["llama"]["endpoints"] == []
    assert spec.source is not None
    found = [Endpoint("10.0.0.7:8000", "ns/pod-1")]
    serving.publish(serving.catalog.rediscovered(spec.source, found))
    (endpoint,) = model_states(serving.fleet, serving.catalog)["llama"]["endpoints"]
    assert (endpoint["address"], endpoint["name"]) == ("10.0.0.7:8000", "ns/pod-1")
    assert (endpoint["state"], endpoint["adapters"]) == ("ready", ["sql"])


class TestSignals:
    def test_are_shown_with_their_age(self) -> None:
        now = 100.0
        serving = Router(Fleet(lambda: now))
        serving.publish(catalog(model_spec(endpoints=["10.0.0.1:8000"])))
        serving.fleet.signals.set_endpoints(["10.0.0.1:8000"])
        report = Report(
            Load(waiting=2.0, kv_usage=0.25),
            running=3.0,
            max_loras=2,
            running_adapters=frozenset({"sql", "law"}),
            waiting_adapters=frozenset({"med"}),
            block_size=16,
            blocks=2048,
            prompt_tokens=1206.0,
            cached_tokens=768.0,
            first_tokens=3.0,
        )
        serving.fleet.signals.record_scrape("10.0.0.1:8000", report, inflight=1)
        now = 101.2345
        assert signals_of(serving) == {
            "waiting": 2.0,
            "running": 3.0,
            "kv_usage": 0.25,
            "max_loras": 2,
            "running_adapters": ["law", "sql"],
            "waiting_adapters": ["med"],
            "loaded_adapters": ["law", "med", "sql"],
            "block_size": 16,
            "blocks": 2048,
            "cache_tokens": 32_768,
            "prompt_tokens": 1206.0,
            "cached_tokens": 768.0,
            "first_tokens": 3.0,
            "first_token_seconds": None,
            "age_seconds": 1.234,
            "reported_age_seconds": 1.234,
        }
        serving.fleet.signals.record_load_report("10.0.0.1:8000", Load(waiting=0.0, kv_usage=0.5))
        now = 102.0
        shown = signals_of(serving)
        assert shown is not None
        assert (shown["waiting"], shown["running"], shown["kv_usage"]) == (0.0, 3.0, 0.5)
        assert (shown["age_seconds"], shown["reported_age_seconds"]) == (0.766, 2.0)

    def test_are_partial_if_only_a_load_report_arrived(self) -> None:
        serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
        serving.fleet.signals.set_endpoints(["10.0.0.1:8000"])
        assert signals_of(serving) is None
        serving.fleet.signals.record_load_report("10.0.0.1:8000", Load(waiting=1.0, kv_usage=0.5))
        assert signals_of(serving) == {
            "waiting": 1.0,
            "running": None,
            "kv_usage": 0.5,
            "max_loras": None,
            "running_adapters": [],
            "waiting_adapters": [],
            "loaded_adapters": [],
            "block_size": None,
            "blocks": None,
            "cache_tokens": 65_536,
            "prompt_tokens": None,
            "cached_tokens": None,
            "first_tokens": None,
            "first_token_seconds": None,
            "age_seconds": 0.0,
            "reported_age_seconds": None,
        }


def signals_of(serving: Router) -> SignalsState | None:
    (endpoint,) = model_states(serving.fleet, serving.catalog)["llama"]["endpoints"]
    return endpoint["signals"]


def test_shows_the_queue_and_the_limits_of_a_model_with_flow_control() -> None:
    flow = Flow(endpoints=1, classes=[{"name": "batch", "priority": -1}])
    flow.fill()
    for tenant in ("a", "a", "b"):
        flow.send(tenant, objective="batch", tenant=tenant)
    flow.now += 1.5
    flow.send("late", objective="batch", tenant="a")

    def shown() -> ModelState:
        return model_states(flow.fleet, flow.router.catalog, flow.control)["llama"]

    default = {"priority": 0, "requests": 0, "tenants": 0, "oldest_seconds": 0.0}
    batch = {"priority": -1, "requests": 4, "tenants": 2, "oldest_seconds": 1.5}
    assert shown()["queue"] == {
        "requests": 4,
        "saturation": 5.0,
        "classes": {"default": default, "batch": batch},
    }
    assert [one["limit"] for one in shown()["endpoints"]] == [1.0]
    for sent in flow.sent[1:3]:
        assert sent.waiter
        flow.control.cancel(sent.waiter)
    after = shown()["queue"]["classes"]["batch"]
    assert (after["requests"], after["tenants"], after["oldest_seconds"]) == (2, 2, 1.5)


def test_shows_discovered_adapters() -> None:
    serving = router(model_spec(strategy="LeastQueue", adapters=["sql"]))
    serving.publish(serving.catalog.with_adapters({"10.0.0.1:8000": frozenset({"law"})}))
    shown = model_states(serving.fleet, serving.catalog)["llama"]
    assert shown["adapters"] == ["law", "sql"]
    assert [endpoint["adapters"] for endpoint in shown["endpoints"]] == [["law", "sql"], ["sql"]]


def test_failing_endpoint_is_ejected_until_it_serves_again() -> None:
    serving = router(model_spec("a"), model_spec("b"))
    ejection, (failing, _) = serving.fleet.ejection, TWO_ADDRESSES

    def shown() -> dict[str, list[str]]:
        return {
            name: [endpoint["state"] for endpoint in model["endpoints"]]
            for name, model in model_states(serving.fleet, serving.catalog).items()
        }

    for _ in range(3):
        ejection.record(failing, Outcome.RESET)
    assert shown() == {"a": ["ejected", "ready"], "b": ["ejected", "ready"]}
    ejection.record(failing, Outcome.SERVED, ejection.chosen(failing))
    assert shown() == {"a": ["ready", "ready"], "b": ["ready", "ready"]}


def test_removed_endpoint_is_draining_until_it_is_empty() -> None:
    serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
    last, lost = decide(serving, "llama"), decide(serving, "llama")
    serving.publish(catalog(model_spec(endpoints=["10.0.0.2:8000"])))

    def shown() -> list[tuple[str, str, int]]:
        endpoints = model_states(serving.fleet, serving.catalog)["llama"]["endpoints"]
        return [(e["address"], e["state"], e["inflight"]) for e in endpoints]

    assert shown() == [("10.0.0.2:8000", "ready", 0), ("10.0.0.1:8000", "draining", 2)]
    lost.lease.release()
    assert shown() == [("10.0.0.2:8000", "ready", 0), ("10.0.0.1:8000", "draining", 1)]
    last.lease.release()
    assert shown() == [("10.0.0.2:8000", "ready", 0)]


def test_endpoint_statuses_need_no_readings() -> None:
    serving = router(
        model_spec("a", endpoints=["10.0.0.1:8000"]), model_spec("b", endpoints=["10.0.0.2:8000"])
    )
    decide(serving, "a")
    decide(serving, "b")
    serving.publish(catalog(model_spec("a"), by_service("c")))
    shown = [
        (model, endpoint.address, *rest)
        for model, endpoint, *rest in endpoint_statuses(serving.fleet, serving.catalog)
    ]
    assert shown == [
        ("a", "10.0.0.1:8000", 1, "ready"),
        ("a", "10.0.0.2:8000", 1, "ready"),
        ("b", "10.0.0.2:8000", 1, "draining"),
    ]


def test_returning_endpoint_is_ready_with_its_requests_in_flight() -> None:
    serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
    decide(serving, "llama")
    serving.publish(catalog(model_spec(endpoints=["10.0.0.2:8000"])))
    serving.publish(catalog(model_spec(endpoints=["10.0.0.1:8000"])))
    (endpoint,) = model_states(serving.fleet, serving.catalog)["llama"]["endpoints"]
    assert (endpoint["state"], endpoint["inflight"]) == ("ready", 1)


def test_removed_model_is_shown_while_it_has_requests() -> None:
    serving = router(model_spec("old", endpoints=["10.0.0.1:8000"]))
    last = decide(serving, "old")
    serving.publish(catalog(model_spec("new", endpoints=["10.0.0.2:8000"])))
    old = model_states(serving.fleet, serving.catalog)["old"]
    assert old["strategy"] is None
    assert [(e["state"], e["inflight"]) for e in old["endpoints"]] == [("draining", 1)]
    last.lease.release()
    assert set(model_states(serving.fleet, serving.catalog)) == {"new"}


def test_endpoint_of_another_model_drains_under_the_old_model() -> None:
    serving = router(model_spec("old", endpoints=["10.0.0.1:8000"]))
    decide(serving, "old")
    serving.publish(catalog(model_spec("new", endpoints=["10.0.0.1:8000"])))
    decide(serving, "new")
    states = model_states(serving.fleet, serving.catalog)
    assert [(e["state"], e["inflight"]) for e in states["old"]["endpoints"]] == [("draining", 1)]
    assert [(e["state"], e["inflight"]) for e in states["new"]["endpoints"]] == [("ready", 2)]
