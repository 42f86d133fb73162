"""Prints the recommended configuration with other addresses."""

from __future__ import annotations

from collections.abc import Sequence

from extproc.envoy import envoy_configuration
from extproc.envoy.addresses import socket_address
from extproc.envoy.locate import listeners
from extproc.envoy.merge.clusters import with_addresses
from extproc.envoy.names import Names
from extproc.envoy.splice import replace_value
from extproc.envoy.tree import parse


def recommended(endpoints: Sequence[str] = (), sidecar: str = "", listen: str = "") -> str:
    """Return the recommended configuration, comments included.

    The shipped file has the default addresses.
    """
    text = envoy_configuration().read_text()
    if listen:
        address = listeners(parse(text))[0].get("address")
        assert address is not None
        text = replace_value(text, address, socket_address(listen))
    text = with_addresses(text, Names.fallback, endpoints)
    return with_addresses(text, Names.sidecar, [sidecar] if sidecar else [])
