from __future__ import annotations

import asyncio
import logging

import pytest

from extproc.adapters.configuration.configuration import Configuration
from extproc.adapters.configuration.document import DocumentError, parse
from extproc.adapters.discovery import discovery
from extproc.adapters.dns.lookup import LookupFailed, NoAddresses, Resolved, Unanswered
from extproc.lab.api_server.builders import endpoint_slice
from tests.adapters.documents import LLAMA, QWEN, Served, eventually
from tests.adapters.kubernetes.scripted import Listed, ScriptedApi, ScriptedCluster, at

BY_SERVICE = b"models: [{name: llama, service: {namespace: ns, name: vllm, port: http}}]"
BOTH = BY_SERVICE.removesuffix(b"]") + b", {name: qwen, endpoints: ['10.0.0.3:8000']}]"
SLICE = at("1", endpoint_slice("vllm", "ns", "vllm-1", [("10.0.0.7", "pod-1", {"ready": True})]))


async def apply(configuration: Configuration, text: bytes) -> None:
    await configuration.apply(parse(text))


async def test_document_takes_effect_completely() -> None:
    served = Served()
    await apply(served.configuration, LLAMA)
    assert served.models == ["llama"]
    await apply(served.configuration, QWEN)
    assert served.models == ["qwen"]
    assert served.sample("extproc_config_reloads_total", result="success") == 2
    assert served.sample("extproc_config_last_reload_successful") == 1


async def test_changes_of_a_document_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    served = Served()
    caplog.set_level(logging.INFO, "extproc.configuration")
    await apply(served.configuration, LLAMA)
    await apply(served.configuration, LLAMA)
    changed = LLAMA.replace(b"10.0.0.2", b"10.0.0.3") + QWEN.removeprefix(b"models:\n")
    await apply(served.configuration, changed)
    await apply(served.configuration, QWEN)
    assert [(one.getMessage(), one.__dict__["fields"]) for one in caplog.records] == [
        ("models document applied", {"models": 1, "added": "llama"}),
        ("models document unchanged", {"models": 1}),
        (
            "models document applied",
            {"models": 2, "added": "qwen", "changed": "llama: endpoints +1 -1"},
        ),
        ("models document applied", {"models": 1, "removed": "llama"}),
    ]


async def test_unchanged_model_keeps_its_strategy_and_leases() -> None:
    served = Served()
    await apply(served.configuration, LLAMA)
    strategy = served.router.catalog.models["llama"].strategy
    served.router.decide(served.router.resolve("llama", None, {}))
    await apply(served.configuration, LLAMA)
    assert served.router.catalog.models["llama"].strategy is strategy
    assert sum(served.router.fleet.ledger.loads.values()) == 1


class TestWhileDocumentIsApplied:
    async def test_event_loop_is_not_blocked(self) -> None:
        served, turns = Served(), 0
        places = ", ".join(f"'10.0.0.{i}:8000'" for i in range(1, 101))
        models = "".join(f"- name: m{i}\n  endpoints: [{places}]\n" for i in range(10))
        applying = asyncio.create_task(apply(served.configuration, f"models:\n{models}".encode()))
        while not applying.done():
            turns += 1
            await asyncio.sleep(0.001)
        # Building takes half a second; a blocked loop would run only once or twice in that time.
        assert turns > 5
        assert len(served.models) == 10

    async def test_endpoints_found_meanwhile_are_not_lost(self) -> None:
        served = Served()
        await apply(served.configuration, LLAMA)
        applying = asyncio.create_task(apply(served.configuration, QWEN))
        await asyncio.sleep(0)
        found = {"10.0.0.3:8000": frozenset({"sql"})}
        served.router.publish(served.router.catalog.with_adapters(found))
        await applying
        assert served.models == ["qwen"]
        assert served.router.catalog.found == found


@pytest.mark.parametrize("problem", [DocumentError(["models: is required"]), OSError(2, "gone")])
async def test_refusal_leaves_last_valid_document_in_force_and_is_logged_once(
    problem: DocumentError | OSError, caplog: pytest.LogCaptureFixture
) -> None:
    served = Served()
    await apply(served.configuration, LLAMA)
    with caplog.at_level(logging.ERROR):
        served.configuration.refuse(problem, "models.yaml")
    assert served.models == ["llama"]
    assert served.refusals() == 1
    assert served.sample("extproc_config_last_reload_successful") == 0
    (record,) = caplog.records
    assert record.__dict__["fields"] == {"source": "models.yaml", "why": problem}


async def test_valid_document_after_invalid_one_is_a_success() -> None:
    served = Served()
    served.configuration.refuse(DocumentError(["no"]), "models.yaml")
    await apply(served.configuration, LLAMA)
    assert served.sample("extproc_config_last_reload_successful") == 1


class TestDocumentWithService:
    async def test_is_refused_without_credentials(self) -> None:
        served = Served()
        await apply(served.configuration, LLAMA)
        with pytest.raises(DocumentError) as refused:
            await apply(served.configuration, BOTH)
        (problem,) = refused.value.problems
        assert problem.startswith("service ns/vllm: no credentials for Kubernetes in ")
        assert served.models == ["llama"]
        assert served.addresses("llama") == ["10.0.0.1:8000", "10.0.0.2:8000"]
        assert served.sample("extproc_config_reloads_total", result="success") == 1
        assert served.discovery.why_not_synced() is None

    async def test_takes_effect_when_endpoints_are_known(self) -> None:
        served = Served(ScriptedCluster(ScriptedApi(endpointslices=[Listed("1", [SLICE])])))
        await apply(served.configuration, BY_SERVICE)
        assert served.addresses("llama") == ["10.0.0.7:8000"]
        await served.close()

    async def test_model_keeps_its_endpoints_until_then(self) -> None:
        api = ScriptedApi(endpointslices=[])
        served = Served(ScriptedCluster(api))
        await apply(served.configuration, LLAMA)
        applying = asyncio.create_task(apply(served.configuration, BY_SERVICE))
        await eventually(lambda: api.verbs == ["list"])
        assert served.addresses("llama") == ["10.0.0.1:8000", "10.0.0.2:8000"]
        assert not applying.done()
        applying.cancel()
        await served.close()

    async def test_takes_effect_without_endpoints_after_a_limit(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(discovery, "SETTLE_SECONDS", 0.05)
        served = Served(ScriptedCluster(ScriptedApi(endpointslices=[])))
        await apply(served.configuration, BOTH)
        assert served.addresses("llama") == []
        assert served.addresses("qwen") == ["10.0.0.3:8000"]
        await served.close()

    async def test_service_of_replaced_document_is_not_watched(self) -> None:
        service = parse(BY_SERVICE).models[0].source
        assert service is not None
        served = Served(ScriptedCluster(ScriptedApi(endpointslices=[Listed("1", [SLICE])])))
        await apply(served.configuration, BY_SERVICE)
        assert served.discovery.endpoints(service)
        await apply(served.configuration, QWEN)
        assert not served.discovery.endpoints(service)
        assert served.models == ["qwen"]


class HostNames:
    """A resolver with scripted results."""

    def __init__(self, **addresses: str) -> None:
        self.results: dict[str, Resolved | LookupFailed] = {
            host: Resolved((address,), 60) for host, address in addresses.items()
        }

    async def resolve(self, host: str) -> Resolved:
        result = self.results.get(host, NoAddresses("the name does not exist"))
        if isinstance(result, LookupFailed):
            raise result
        return result


BY_NAME = b"models: [{name: llama, endpoints: ['vllm:8000', '10.0.0.2:8000']}]"


class TestDocumentWithHostName:
    async def test_takes_effect_with_addresses_of_the_name(self) -> None:
        served = Served(resolve=HostNames(vllm="10.0.0.1").resolve)
        await apply(served.configuration, BY_NAME)
        assert served.addresses("llama") == ["10.0.0.1:8000", "10.0.0.2:8000"]
        assert served.sample("extproc_name_lookups_total", result="ok") == 1
        assert 0 <= served.sample("extproc_discovery_age_seconds", model="llama") < 60
        await served.close()

    @pytest.mark.parametrize(
        "failure", [NoAddresses("the name does not exist"), Unanswered("no response from DNS")]
    )
    async def test_is_accepted_before_the_name_resolves(self, failure: LookupFailed) -> None:
        names = HostNames()
        names.results["vllm"] = failure
        served = Served(resolve=names.resolve)
        await apply(served.configuration, BY_NAME)
        assert served.addresses("llama") == ["10.0.0.2:8000"]
        assert served.sample("extproc_config_last_reload_successful") == 1
        await served.close()

    async def test_keeps_addresses_of_a_name_in_the_last_document(self) -> None:
        names = HostNames(vllm="10.0.0.1")
        served = Served(resolve=names.resolve)
        await apply(served.configuration, BY_NAME)
        names.results["vllm"] = Unanswered("no response from DNS")
        await apply(served.configuration, BY_NAME.replace(b"10.0.0.2", b"10.0.0.3"))
        assert served.addresses("llama") == ["10.0.0.1:8000", "10.0.0.3:8000"]
        await served.close()

    async def test_counts_rejected_addresses(self) -> None:
        served = Served(resolve=HostNames(vllm="169.254.169.254").resolve)
        await apply(served.configuration, BY_NAME)
        assert served.addresses("llama") == ["10.0.0.2:8000"]
        source = "endpoints vllm:8000 and 1 more"
        refused = {"source": source, "reason": "link_local"}
        assert served.sample("extproc_endpoints_refused_total", **refused) == 1
        await served.close()

    async def test_is_synced_after_a_response(self) -> None:
        names = HostNames()
        served = Served(resolve=names.resolve)
        await apply(served.configuration, BY_NAME)
        assert served.discovery.why_not_synced() is None
        names.results["other"] = Unanswered("no response from DNS")
        await apply(served.configuration, BY_NAME.replace(b"vllm", b"other"))
        source = "endpoints other:8000 and 1 more"
        assert served.discovery.why_not_synced() == f"{source}: other: no response from DNS"
        await served.close()


async def test_model_without_endpoints_is_in_force_and_current() -> None:
    served = Served()
    await apply(served.configuration, b"models: [{name: llama, endpoints: []}]")
    assert served.addresses("llama") == []
    assert served.discovery.why_not_synced() is None
    assert served.sample("extproc_endpoints", model="llama", state="ready") == 0
