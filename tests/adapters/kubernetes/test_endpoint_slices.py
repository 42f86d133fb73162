from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.endpoints.addresses import AddressState, FoundAddress, RejectedAddress
from extproc.adapters.endpoints.screening import RejectionReason, Screen
from extproc.adapters.endpoints.selection import select_endpoints
from extproc.adapters.kubernetes.endpoint_slices import read_slices
from extproc.adapters.kubernetes.objects import EndpointSlice
from extproc.core.fleet.endpoint import Endpoint
from extproc.lab.api_server.builders import endpoint_slice
from tests.core.builders import brief, thorough

Json = dict[str, Any]

API_SERVER = (ipaddress.ip_address("10.96.0.1"), 443)
SCREEN = Screen([API_SERVER], allow_loopback=False)

READY = {"ready": True, "serving": True, "terminating": False}
STARTING = {"ready": False, "serving": False, "terminating": False}
TERMINATING = {"ready": False, "serving": True, "terminating": True}
GONE = {"ready": False, "serving": False, "terminating": True}


def a_slice(*endpoints: tuple[str, str, Mapping[str, bool]], **more: Any) -> Json:
    return endpoint_slice("vllm", "ns", "vllm-1", endpoints, **more)


def with_ports(*ports: Json) -> Json:
    return {**a_slice(("10.0.0.7", "pod-7", READY)), "ports": list(ports)}


def read(slices: Iterable[Json], port: str | int = "http") -> list[FoundAddress | RejectedAddress]:
    return list(read_slices(map(EndpointSlice.model_validate, slices), port, SCREEN))


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
            ({"serving": False}, AddressState.READY),
            # An API server older than `serving` and `terminating`.
            ({"ready": False}, AddressState.UNREADY),
            ({"ready": True}, AddressState.READY),
            # An address that is not ready may still report that it serves.
            ({"ready": False, "serving": True}, AddressState.UNREADY),
            ({"terminating": True}, AddressState.SERVING),
            ({"ready": False, "terminating": True}, AddressState.GONE),
            # A Service with publishNotReadyAddresses reports all its endpoints as ready.
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


conditions = st.none() | st.fixed_dictionaries(
    {},
    optional={key: st.none() | st.booleans() for key in ("ready", "serving", "terminating")},
)
targets = st.none() | st.fixed_dictionaries(
    {"kind": st.just("Pod"), "name": st.sampled_from(["a", "b", "c"]), "namespace": st.just("ns")}
)
addresses = st.sampled_from(
    ["10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1", "2001:DB8::2", "::ffff:10.0.0.1"]
) | st.sampled_from(["127.0.0.1", "::ffff:169.254.169.254", "10.96.0.1", "0.0.0.0", "host"])
endpoints = st.fixed_dictionaries(
    {"addresses": st.none() | st.lists(addresses, max_size=2)},
    optional={"conditions": conditions, "targetRef": targets},
)
ports = st.fixed_dictionaries(
    {"name": st.sampled_from(["http", "metrics", "", None])},
    optional={
        "port": st.sampled_from([8000, 8001, None]),
        "protocol": st.sampled_from(["TCP", "UDP", None]),
    },
)
some_slices = st.lists(
    st.fixed_dictionaries(
        {
            "metadata": st.just({"name": "s", "namespace": "ns"}),
            "endpoints": st.none() | st.lists(endpoints, max_size=4),
            "ports": st.none() | st.lists(ports, max_size=2),
        }
    ),
    max_size=4,
)


def shuffled(slices: list[Json], rng: Random) -> list[Json]:
    mixed = [
        {**one, "endpoints": rng.sample(one["endpoints"] or [], len(one["endpoints"] or []))}
        for one in slices
    ]
    rng.shuffle(mixed)
    return mixed


def endpoints_of(slices: list[Json]) -> tuple[Endpoint, ...]:
    return select_endpoints(one for one in read(slices) if isinstance(one, FoundAddress))


@thorough
@given(some_slices, st.randoms(use_true_random=False))
def test_order_of_slices_and_endpoints_does_not_matter(slices: list[Json], rng: Random) -> None:
    assert endpoints_of(shuffled(slices, rng)) == endpoints_of(slices)


@brief
@given(some_slices)
def test_no_rejected_address_is_selected(slices: list[Json]) -> None:
    for endpoint in endpoints_of(slices):
        host, _, port = endpoint.address.rpartition(":")
        assert SCREEN.rejection(host.strip("[]"), int(port)) is None


@brief
@given(some_slices)
def test_every_address_is_found_or_rejected(slices: list[Json]) -> None:
    given_ = [e["addresses"][0] for one in slices for e in one["endpoints"] or () if e["addresses"]]
    assert [one.address for one in read(slices)] == given_


@brief
@given(some_slices)
def test_names_and_addresses_are_unique(slices: list[Json]) -> None:
    found = endpoints_of(slices)
    assert len({e.name for e in found}) == len({e.address for e in found}) == len(found)


@brief
@given(some_slices)
def test_no_terminating_endpoint_is_selected_while_one_is_ready(slices: list[Json]) -> None:
    found = [one for one in read(slices) if isinstance(one, FoundAddress)]
    going = {(one.address, one.port, one.pod) for one in found if one.state.is_terminating}
    ready = [
        one
        for one in found
        if one.state is AddressState.READY and (one.address, one.port, one.pod) not in going
    ]
    if ready:
        alone = {endpoint.address for one in ready for endpoint in select_endpoints([one])}
        assert {endpoint.address for endpoint in endpoints_of(slices)} <= alone
