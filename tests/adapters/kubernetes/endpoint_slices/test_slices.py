from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from extproc.adapters.endpoints.addresses import AddressState, FoundAddress, RejectedAddress
from extproc.adapters.endpoints.screening import RejectionReason
from extproc.adapters.endpoints.selection import select_endpoints
from extproc.lab.api_server.builders import endpoint_slice
from tests.adapters.kubernetes.endpoint_slices.slices import (
    Json,
    read,
)

READY = {"ready": True, "serving": True, "terminating": False}


STARTING = {"ready": False, "serving": False, "terminating": False}


TERMINATING = {"ready": False, "serving": True, "terminating": True}


GONE = {"ready": False, "serving": False, "terminating": True}


def a_slice(*endpoints: tuple[str, str, Mapping[str, bool]], **more: Any) -> Json:
    return endpoint_slice("vllm", "ns", "vllm-1", endpoints, **more)


def with_ports(*ports: Json) -> Json:
    return {**a_slice(("10.0.0.7", "pod-7", READY)), "ports": list(ports)}


def chosen(*slices: Json, port: str | int = "http") -> dict[str, str]:
    """Return the addresses of the selected endpoints, by name."""
    endpoints = select_endpoints(one for one in read(slices, port) if isinstance(one, FoundAddress))
    return {endpoint.name: endpoint.address for endpoint in endpoints}


def refused(*slices: Json, port: str | int = "http") -> dict[str, str]:
    return {
        one.address: one.reason for one in read(slices, port) if isinstance(one, RejectedAddress)
    }


class TestService:
    def test_has_ready_endpoints_of_all_slices(self) -> None:
        first = a_slice(("10.0.0.1", "a", READY), ("10.0.0.2", "b", STARTING))
        second = a_slice(("10.0.0.3", "c", READY))
        assert chosen(first, second) == {"ns/a": "10.0.0.1:8000", "ns/c": "10.0.0.3:8000"}

    def test_has_no_endpoints_without_slices_or_with_empty_ones(self) -> None:
        assert chosen() == {}
        assert chosen({**a_slice(), "endpoints": None, "ports": None}) == {}

    def test_slices_can_overlap(self) -> None:
        twice = a_slice(("10.0.0.1", "a", READY)), a_slice(("10.0.0.1", "a", READY))
        assert chosen(*twice) == {"ns/a": "10.0.0.1:8000"}

    def test_slices_can_disagree(self) -> None:
        slices = a_slice(("10.0.0.1", "a", READY)), a_slice(("10.0.0.1", "a", TERMINATING))
        other = a_slice(("10.0.0.2", "b", READY))
        assert chosen(*slices, other) == {"ns/b": "10.0.0.2:8000"}
        assert chosen(*slices) == {"ns/a": "10.0.0.1:8000"}

    def test_dual_stack_service_has_each_pod_once(self) -> None:
        v4 = a_slice(("10.0.0.1", "a", READY), ("10.0.0.2", "b", READY))
        v6 = a_slice(("2001:db8::1", "a", READY), ("2001:db8::2", "b", READY), address_type="IPv6")
        both = {"ns/a": "10.0.0.1:8000", "ns/b": "10.0.0.2:8000"}
        assert chosen(v4, v6) == chosen(v6, v4) == both
        assert chosen(v6) == {"ns/a": "[2001:db8::1]:8000", "ns/b": "[2001:db8::2]:8000"}

    def test_uses_serving_pods_if_all_terminate(self) -> None:
        leaving = a_slice(("10.0.0.1", "a", TERMINATING), ("10.0.0.2", "b", GONE))
        assert chosen(leaving) == {"ns/a": "10.0.0.1:8000"}
        assert chosen(leaving, a_slice(("10.0.0.3", "c", STARTING))) == {"ns/a": "10.0.0.1:8000"}
        assert chosen(leaving, a_slice(("10.0.0.3", "c", READY))) == {"ns/c": "10.0.0.3:8000"}


class TestConditions:
    @pytest.mark.parametrize(
        ("conditions", "state"),
        [
            (READY, AddressState.READY),
            (STARTING, AddressState.UNREADY),
            (TERMINATING, AddressState.SERVING),
            (GONE, AddressState.GONE),
            # A missing `ready` means true.
            ({}, AddressState.READY),
            (None, AddressState.READY),
            ({"ready": None}, AddressState.READY),
            ({"ready": None, "serving": None, "terminating": None}, AddressState.READY),
            ({"serving": True}, AddressState.READY),
            # An API server older than `serving` and `terminating`.
            ({"ready": False}, AddressState.UNREADY),
            ({"ready": True}, AddressState.READY),
            # An address that is not ready may still report that it serves.
            ({"ready": False, "serving": True}, AddressState.UNREADY),
            ({"terminating": True}, AddressState.SERVING),
            ({"ready": False, "terminating": True}, AddressState.GONE),
            # A Service with publishNotReadyAddresses reports all its endpoints as ready.
            ({"ready": True, "serving": False, "terminating": False}, AddressState.UNREADY),
            ({"serving": False}, AddressState.UNREADY),
            ({"ready": True, "serving": True, "terminating": True}, AddressState.SERVING),
            ({"ready": True, "serving": False, "terminating": True}, AddressState.GONE),
        ],
    )
    def test_give_the_state_of_an_address(
        self, conditions: Json | None, state: AddressState
    ) -> None:
        endpoint = {"addresses": ["10.0.0.7"], "conditions": conditions}
        (found,) = read([{**a_slice(), "endpoints": [endpoint]}])
        assert isinstance(found, FoundAddress)
        assert found.state is state

    def test_can_be_missing(self) -> None:
        (found,) = read([{**a_slice(), "endpoints": [{"addresses": ["10.0.0.7"]}]}])
        assert found == FoundAddress("10.0.0.7", 8000, "", AddressState.READY)


HTTP = {"name": "http", "port": 8000, "protocol": "TCP"}


METRICS = {"name": "metrics", "port": 9000, "protocol": "TCP"}


class TestPort:
    @pytest.mark.parametrize("port", ["http", 8000])
    def test_is_found_by_name_or_number(self, port: str | int) -> None:
        ports = with_ports(METRICS, HTTP)
        assert chosen(ports, port=port) == {"ns/pod-7": "10.0.0.7:8000"}

    def test_can_have_no_name(self) -> None:
        for name in ("", None):
            ports = with_ports({"name": name, "port": 8000, "protocol": "TCP"})
            assert chosen(ports, port=8000) == {"ns/pod-7": "10.0.0.7:8000"}

    def test_protocol_defaults_to_tcp(self) -> None:
        assert chosen(with_ports({"name": "http", "port": 8000})) == {"ns/pod-7": "10.0.0.7:8000"}

    @pytest.mark.parametrize("port", ["http", 8000])
    @pytest.mark.parametrize("protocol", ["UDP", "SCTP"])
    def test_of_another_protocol_is_ignored(self, port: str | int, protocol: str) -> None:
        other = {**HTTP, "protocol": protocol}
        assert chosen(with_ports(other), port=port) == {}
        assert chosen(with_ports(other, HTTP), port=port) == {"ns/pod-7": "10.0.0.7:8000"}

    def test_number_can_differ_between_slices(self) -> None:
        old = a_slice(("10.0.0.1", "a", READY), port=8000)
        new = a_slice(("10.0.0.2", "b", READY), port=9000)
        assert chosen(old, new) == {"ns/a": "10.0.0.1:8000", "ns/b": "10.0.0.2:9000"}
        assert chosen(old, new, port=8000) == {"ns/a": "10.0.0.1:8000"}

    @pytest.mark.parametrize("port", ["https", 8001, "8000"])
    def test_undeclared_one_is_rejected(self, port: str | int) -> None:
        assert chosen(with_ports(HTTP), port=port) == {}
        assert refused(with_ports(HTTP), port=port) == {"10.0.0.7": RejectionReason.UNDECLARED_PORT}

    @pytest.mark.parametrize("ports", [[], None, [{"name": "http", "port": None}]])
    def test_without_number_is_rejected(self, ports: list[Json] | None) -> None:
        undeclared = {**a_slice(("10.0.0.7", "pod-7", READY)), "ports": ports}
        assert chosen(undeclared) == {}
        assert refused(undeclared) == {"10.0.0.7": RejectionReason.UNDECLARED_PORT}


class TestAddress:
    @pytest.mark.parametrize(
        ("address", "reason"),
        [
            ("127.0.0.1", RejectionReason.LOOPBACK),
            ("169.254.169.254", RejectionReason.LINK_LOCAL),
            ("10.96.0.1", RejectionReason.API_SERVER),
            ("vllm.example.com", RejectionReason.NO_ADDRESS),
        ],
    )
    def test_rejected_one_does_not_affect_others(
        self, address: str, reason: RejectionReason
    ) -> None:
        poisoned = a_slice((address, "bad", READY), ("10.0.0.7", "pod-7", READY))
        assert chosen(poisoned) == {"ns/pod-7": "10.0.0.7:8000"}
        assert refused(poisoned) == {address: reason}

    def test_rejected_one_does_not_hide_other_address_of_the_pod(self) -> None:
        v4 = a_slice(("127.0.0.1", "a", READY))
        v6 = a_slice(("2001:db8::1", "a", READY), address_type="IPv6")
        assert chosen(v4, v6) == {"ns/a": "[2001:db8::1]:8000"}

    def test_only_first_of_an_endpoint_counts(self) -> None:
        endpoint = {"addresses": ["10.0.0.1", "10.0.0.2"]}
        assert list(chosen({**a_slice(), "endpoints": [endpoint]})) == ["10.0.0.1:8000"]
        assert not chosen({**a_slice(), "endpoints": [{"addresses": None}]})


class TestPodName:
    @pytest.mark.parametrize(
        "target",
        [
            None,
            {},
            {"kind": "Node", "name": "node-1", "namespace": ""},
            {"kind": "Pod", "namespace": "ns"},
        ],
    )
    def test_is_empty_without_a_target_pod(self, target: Json | None) -> None:
        endpoint = {"addresses": ["10.0.0.7"], "targetRef": target}
        external = {**a_slice(), "endpoints": [endpoint]}
        assert chosen(external) == {"10.0.0.7:8000": "10.0.0.7:8000"}

    def test_namespace_defaults_to_that_of_the_slice(self) -> None:
        endpoint = {"addresses": ["10.0.0.7"], "targetRef": {"kind": "Pod", "name": "a"}}
        assert list(chosen({**a_slice(), "endpoints": [endpoint]})) == ["ns/a"]
