"""Slices, and the endpoints that are selected from them."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st

from extproc.adapters.endpoints.addresses import FoundAddress, RejectedAddress
from extproc.adapters.endpoints.screening import Screen
from extproc.adapters.kubernetes.endpoint_slices import read_slices
from extproc.adapters.kubernetes.objects import EndpointSlice

Json = dict[str, Any]


API_SERVER = (ipaddress.ip_address("10.96.0.1"), 443)


SCREEN = Screen([API_SERVER], allow_loopback=False)


def read(slices: Iterable[Json], port: str | int = "http") -> list[FoundAddress | RejectedAddress]:
    return list(read_slices(map(EndpointSlice.model_validate, slices), port, SCREEN))


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
