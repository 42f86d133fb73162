from __future__ import annotations

from extproc.adapters.state import model_states
from extproc.core.endpoint import Endpoint
from extproc.core.router import Decision, Router
from tests.core.builders import by_service, catalog, model_spec, router


def decide(serving: Router, model: str) -> Decision:
    return serving.decide(serving.place(model, None, {}))


def test_every_model_is_shown_with_its_endpoints() -> None:
    serving = router(model_spec(adapters=["sql", "law"], strategy="LeastLoad"))
    decided = decide(serving, "llama")
    loads = {decided.address: 1}
    assert model_states(serving) == {
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


def test_a_discovered_endpoint_is_shown_with_its_pods_name() -> None:
    spec = by_service(adapters=["sql"])
    serving = router(spec)
    assert model_states(serving)["llama"]["endpoints"] == []
    assert spec.source is not None
    found = [Endpoint("10.0.0.7:8000", "ns/pod-1")]
    serving.publish(serving.catalog.rediscovered(spec.source, found))
    (endpoint,) = model_states(serving)["llama"]["endpoints"]
    assert (endpoint["address"], endpoint["name"]) == ("10.0.0.7:8000", "ns/pod-1")
    assert (endpoint["state"], endpoint["adapters"]) == ("ready", ["sql"])


def test_an_endpoint_that_left_is_draining_until_it_is_empty() -> None:
    serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
    last, lost = decide(serving, "llama"), decide(serving, "llama")
    serving.publish(catalog(model_spec(endpoints=["10.0.0.2:8000"])))

    def shown() -> list[tuple[str, str, int]]:
        endpoints = model_states(serving)["llama"]["endpoints"]
        return [(e["address"], e["state"], e["inflight"]) for e in endpoints]

    assert shown() == [("10.0.0.2:8000", "ready", 0), ("10.0.0.1:8000", "draining", 2)]
    lost.lease.release()
    assert shown() == [("10.0.0.2:8000", "ready", 0), ("10.0.0.1:8000", "draining", 1)]
    last.lease.release()
    assert shown() == [("10.0.0.2:8000", "ready", 0)]


def test_an_endpoint_that_comes_back_is_ready_with_the_requests_it_still_has() -> None:
    serving = router(model_spec(endpoints=["10.0.0.1:8000"]))
    decide(serving, "llama")
    serving.publish(catalog(model_spec(endpoints=["10.0.0.2:8000"])))
    serving.publish(catalog(model_spec(endpoints=["10.0.0.1:8000"])))
    (endpoint,) = model_states(serving)["llama"]["endpoints"]
    assert (endpoint["state"], endpoint["inflight"]) == ("ready", 1)


def test_a_model_that_left_is_shown_while_it_has_requests() -> None:
    serving = router(model_spec("old", endpoints=["10.0.0.1:8000"]))
    last = decide(serving, "old")
    serving.publish(catalog(model_spec("new", endpoints=["10.0.0.2:8000"])))
    old = model_states(serving)["old"]
    assert old["strategy"] is None
    assert [(e["state"], e["inflight"]) for e in old["endpoints"]] == [("draining", 1)]
    last.lease.release()
    assert set(model_states(serving)) == {"new"}


def test_an_endpoint_that_moved_to_another_model_drains_under_the_old() -> None:
    serving = router(model_spec("old", endpoints=["10.0.0.1:8000"]))
    decide(serving, "old")
    serving.publish(catalog(model_spec("new", endpoints=["10.0.0.1:8000"])))
    decide(serving, "new")
    states = model_states(serving)
    assert [(e["state"], e["inflight"]) for e in states["old"]["endpoints"]] == [("draining", 1)]
    assert [(e["state"], e["inflight"]) for e in states["new"]["endpoints"]] == [("ready", 2)]
