from __future__ import annotations

from typing import Any

import pytest

from extproc.adapters.endpoints.addresses import AddressState, FoundAddress, RejectedAddress
from extproc.adapters.endpoints.screening import RejectionReason, Screen
from extproc.adapters.endpoints.selection import select_endpoints
from extproc.adapters.kubernetes.inference_pool import read_pods, selector
from extproc.adapters.kubernetes.objects import InferencePool, Pod
from extproc.lab.api_server.builders import inference_pool, pod

Json = dict[str, Any]

SCREEN = Screen((), allow_loopback=False)


def a_pod(name: str = "pod-7", ip: str = "10.0.0.7", **more: bool) -> Json:
    return pod("ns", name, {"app": "vllm"}, ip, **more)


def read(*pods: Json, ports: tuple[int, ...] = (8000,)) -> list[FoundAddress | RejectedAddress]:
    pool = InferencePool.model_validate(inference_pool("ns", "pool", {"app": "vllm"}, ports))
    return list(read_pods(map(Pod.model_validate, pods), pool, SCREEN))


def chosen(*pods: Json, ports: tuple[int, ...] = (8000,)) -> dict[str, str]:
    endpoints = select_endpoints(
        one for one in read(*pods, ports=ports) if isinstance(one, FoundAddress)
    )
    return {endpoint.name: endpoint.address for endpoint in endpoints}


class TestPool:
    def test_has_ready_pods_on_its_port(self) -> None:
        pods = a_pod("a", "10.0.0.1"), a_pod("b", "10.0.0.2", ready=False), a_pod("c", "fd00::3")
        assert chosen(*pods) == {"ns/a": "10.0.0.1:8000", "ns/c": "[fd00::3]:8000"}

    def test_has_an_endpoint_on_each_port(self) -> None:
        assert chosen(a_pod(), ports=(8000, 8001)) == {
            "ns/pod-7:8000": "10.0.0.7:8000",
            "ns/pod-7:8001": "10.0.0.7:8001",
        }

    def test_has_no_endpoints_without_ports(self) -> None:
        assert chosen(a_pod(), ports=()) == {}

    def test_uses_serving_pods_if_all_terminate(self) -> None:
        going = a_pod("a", "10.0.0.1", deleting=True)
        gone = a_pod("b", "10.0.0.2", deleting=True, ready=False)
        assert chosen(going, gone) == {"ns/a": "10.0.0.1:8000"}
        assert chosen(going, gone, a_pod()) == {"ns/pod-7": "10.0.0.7:8000"}

    def test_selector_has_the_form_of_the_api(self) -> None:
        labels = {"role": "decode", "app": "vllm", "example.com/tier": "1"}
        pool = InferencePool.model_validate(inference_pool("ns", "pool", labels, [8000]))
        assert selector(pool) == "app=vllm,example.com/tier=1,role=decode"

    def test_selects_nothing_without_labels(self) -> None:
        assert selector(InferencePool.model_validate(inference_pool("ns", "pool", {}, [1]))) == ""


class TestPod:
    @pytest.mark.parametrize(
        ("status", "state"),
        [
            ({}, AddressState.READY),
            ({"phase": "Pending"}, AddressState.UNREADY),
            ({"phase": "Succeeded"}, AddressState.UNREADY),
            ({"phase": "Failed"}, AddressState.UNREADY),
            ({"conditions": None}, AddressState.UNREADY),
            ({"conditions": [{"type": "Ready", "status": "False"}]}, AddressState.UNREADY),
            ({"conditions": [{"type": "Ready", "status": "Unknown"}]}, AddressState.UNREADY),
            ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, AddressState.UNREADY),
        ],
    )
    def test_is_ready_if_running_with_ready_condition(
        self, status: Json, state: AddressState
    ) -> None:
        body = a_pod()
        (found,) = read({**body, "status": {**body["status"], **status}})
        assert found == FoundAddress("10.0.0.7", 8000, "ns/pod-7", state)

    @pytest.mark.parametrize("ip", [None, ""])
    def test_without_address_is_skipped(self, ip: str | None) -> None:
        body = a_pod()
        assert read({**body, "status": {**body["status"], "podIP": ip}}) == []

    def test_with_bad_address_is_rejected(self) -> None:
        bad = a_pod("bad", "127.0.0.1")
        assert (
            read(bad, ports=(8000, 8001))
            == [RejectedAddress("127.0.0.1", RejectionReason.LOOPBACK)] * 2
        )
        assert chosen(bad, a_pod()) == {"ns/pod-7": "10.0.0.7:8000"}
