from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.endpoints.addresses import AddressState, FoundAddress
from extproc.adapters.endpoints.selection import select_endpoints
from tests.core.builders import thorough


def found(
    address: str = "10.0.0.7",
    pod: str = "ns/pod-7",
    state: AddressState = AddressState.READY,
    port: int = 8000,
) -> FoundAddress:
    return FoundAddress(address, port, pod, state)


def chosen(*those: FoundAddress) -> dict[str, str]:
    """Return the addresses of the selected endpoints, by name."""
    endpoints = select_endpoints(those)
    assert len({endpoint.name for endpoint in endpoints}) == len(endpoints)
    return {endpoint.name: endpoint.address for endpoint in endpoints}


class TestEndpoint:
    def test_is_named_after_its_pod(self) -> None:
        assert chosen(found("10.0.0.7", "ns/pod-7")) == {"ns/pod-7": "10.0.0.7:8000"}

    def test_is_named_after_its_address_without_a_pod(self) -> None:
        assert chosen(found("10.0.0.7", "")) == {"10.0.0.7:8000": "10.0.0.7:8000"}

    def test_keeps_pod_name_that_another_source_omits(self) -> None:
        assert chosen(found(pod=""), found(pod="ns/pod-7")) == {"ns/pod-7": "10.0.0.7:8000"}

    def test_ipv6_address_is_canonical_and_in_brackets(self) -> None:
        assert chosen(found("2001:0DB8:0::7")) == {"ns/pod-7": "[2001:db8::7]:8000"}
        assert chosen(found("2001:db8::7", "")) == {"[2001:db8::7]:8000": "[2001:db8::7]:8000"}

    def test_ipv4_mapped_address_becomes_ipv4(self) -> None:
        assert chosen(found("::ffff:10.0.0.7")) == {"ns/pod-7": "10.0.0.7:8000"}

    def test_dual_stack_pod_is_one(self) -> None:
        both = (found("2001:db8::7"), found("10.0.0.7"))
        assert chosen(*both) == {"ns/pod-7": "10.0.0.7:8000"}
        assert chosen(*reversed(both)) == {"ns/pod-7": "10.0.0.7:8000"}

    def test_uses_ipv6_address_if_only_that_one_is_ready(self) -> None:
        both = (found("10.0.0.7", state=AddressState.UNREADY), found("2001:db8::7"))
        assert chosen(*both) == {"ns/pod-7": "[2001:db8::7]:8000"}

    def test_address_found_twice_is_one(self) -> None:
        assert chosen(found(), found()) == {"ns/pod-7": "10.0.0.7:8000"}
        assert chosen(found(pod=""), found(pod="")) == {"10.0.0.7:8000": "10.0.0.7:8000"}

    def test_each_port_of_a_pod_is_one(self) -> None:
        assert chosen(found(port=8000), found(port=8001)) == {
            "ns/pod-7:8000": "10.0.0.7:8000",
            "ns/pod-7:8001": "10.0.0.7:8001",
        }

    def test_name_does_not_depend_on_ports_of_other_pods(self) -> None:
        other = found("10.0.0.8", "ns/pod-8", port=8001)
        assert chosen(found(), other) == {"ns/pod-7": "10.0.0.7:8000", "ns/pod-8": "10.0.0.8:8001"}

    def test_two_pods_at_one_address_are_one(self) -> None:
        # Another pod soon gets the address of a removed pod.
        assert len(chosen(found(pod="ns/a"), found(pod="ns/b"))) == 1


class TestSelection:
    READY = found("10.0.0.1", "ns/1")
    SERVING = found("10.0.0.2", "ns/2", AddressState.SERVING)
    UNREADY = found("10.0.0.3", "ns/3", AddressState.UNREADY)
    GONE = found("10.0.0.4", "ns/4", AddressState.GONE)

    def test_contains_ready_ones(self) -> None:
        assert list(chosen(self.READY, self.SERVING, self.UNREADY, self.GONE)) == ["ns/1"]

    def test_contains_serving_ones_only_if_none_is_ready(self) -> None:
        assert list(chosen(self.SERVING, self.UNREADY, self.GONE)) == ["ns/2"]

    def test_never_contains_others(self) -> None:
        assert not chosen(self.UNREADY, self.GONE)
        assert not chosen()

    def test_prefers_new_pod_at_the_address_of_a_terminating_one(self) -> None:
        assert chosen(found(pod="ns/new"), found(pod="ns/old", state=AddressState.SERVING)) == {
            "ns/new": "10.0.0.7:8000"
        }


class TestDisagreement:
    def chosen(self, first: AddressState, second: AddressState) -> bool:
        other = found("10.0.0.9", "ns/other")
        one_way = chosen(found(state=first), found(state=second), other)
        other_way = chosen(other, found(state=second), found(state=first))
        assert one_way == other_way
        return "ns/pod-7" in one_way

    def test_ready_state_counts(self) -> None:
        assert self.chosen(AddressState.READY, AddressState.UNREADY)

    def test_terminating_state_counts_because_it_is_final(self) -> None:
        assert not self.chosen(AddressState.READY, AddressState.SERVING)
        assert not self.chosen(AddressState.READY, AddressState.GONE)

    def test_gone_state_counts_most(self) -> None:
        assert not chosen(found(state=AddressState.SERVING), found(state=AddressState.GONE))


few_found = st.lists(
    st.builds(
        FoundAddress,
        st.sampled_from(["10.0.0.1", "10.0.0.2", "10.0.0.3", "2001:db8::1", "::ffff:10.0.0.1"]),
        st.sampled_from([8000, 8001]),
        st.sampled_from(["", "ns/a", "ns/b", "ns/c"]),
        st.sampled_from(AddressState),
    ),
    max_size=8,
)


@thorough
@given(few_found, st.randoms(use_true_random=False))
def test_order_of_addresses_does_not_matter(those: list[FoundAddress], rng: Random) -> None:
    assert select_endpoints(rng.sample(those, len(those))) == select_endpoints(those)


@thorough
@given(few_found)
def test_names_and_addresses_are_unique_and_were_found(those: list[FoundAddress]) -> None:
    endpoints = select_endpoints(those)
    addresses = {endpoint.address for endpoint in endpoints}
    assert len({endpoint.name for endpoint in endpoints}) == len(addresses) == len(endpoints)
    assert addresses <= {alone(one) for one in those}


@thorough
@given(few_found)
def test_all_are_ready_or_all_are_serving(those: list[FoundAddress]) -> None:
    going = {one[:3] for one in those if one.state.is_terminating}
    ready = {
        alone(one) for one in those if one.state is AddressState.READY and one[:3] not in going
    }
    serving = {alone(one) for one in those if one.state is AddressState.SERVING}
    addresses = {endpoint.address for endpoint in select_endpoints(those)}
    assert addresses <= (ready or serving)
    assert bool(addresses) >= bool(ready)


def alone(one: FoundAddress) -> str:
    """Return the address under which the endpoint is reached."""
    (endpoint,) = select_endpoints([one._replace(state=AddressState.READY)])
    return endpoint.address
