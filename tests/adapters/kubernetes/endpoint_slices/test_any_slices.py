from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.endpoints.addresses import AddressState, FoundAddress
from extproc.adapters.endpoints.selection import select_endpoints
from extproc.core.fleet.endpoint import Endpoint
from tests.adapters.kubernetes.endpoint_slices.slices import (
    SCREEN,
    Json,
    endpoints,
    ports,
    read,
)
from tests.core.builders import brief, thorough

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
