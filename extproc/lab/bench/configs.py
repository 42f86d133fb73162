"""Envoy configurations: envoy/envoy.yaml and the ones compared with it.

All keep its listener, access log, limits and clusters, so they differ only in the measured part.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from extproc.envoy import envoy_configuration
from extproc.lab.stack.envoy import EnvoyAddresses, local_configuration

Config = dict[str, Any]

_LUA = Path(__file__).with_name("in_process.lua")
_HASH = "x-prefix-hash"
_BALANCE_FACTOR = 125
"""Percent: no endpoint gets more than 1.25 times the mean, as with PrefixHash."""


def with_sidecar(sidecar: str, upstreams: Sequence[str]) -> Config:
    """Return the recommended configuration."""
    return local_configuration(envoy_configuration(), EnvoyAddresses(sidecar, upstreams))


def add_tls(config: Config) -> None:
    """Make Envoy call the sidecar with TLS and accept any certificate."""
    _cluster(config, "extproc")["transport_socket"] = {
        "name": "envoy.transport_sockets.tls",
        "typed_config": {
            "@type": "type.googleapis.com/"
            "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"
        },
    }


def alone(upstreams: Sequence[str]) -> Config:
    """Return the configuration without the filter: requests go to the upstreams in turn."""
    config = with_sidecar("127.0.0.1:1", upstreams)
    manager = _manager(config)
    # The router is the last one.
    del manager["http_filters"][:-1]
    for route in manager["route_config"]["virtual_hosts"][0]["routes"]:
        route.pop("typed_per_filter_config", None)
    _cluster(config, "fallback")["lb_policy"] = "ROUND_ROBIN"
    return config


def with_lua(upstreams: Sequence[str]) -> Config:
    """Return a configuration without a sidecar: a hash of the prompt's start and a bounded ring."""
    config = alone(upstreams)
    manager = _manager(config)
    manager["http_filters"].insert(0, _lua_filter())
    (host,) = manager["route_config"]["virtual_hosts"]
    # The last route has a buffer limit that fits large bodies. Here it matches every path.
    route = {**host["routes"][-1], "match": {"prefix": "/"}}
    route["route"]["hash_policy"] = [{"header": {"header_name": _HASH}}]
    host["routes"] = [route]
    cluster = _cluster(config, "fallback")
    cluster["lb_policy"] = "RING_HASH"
    cluster["common_lb_config"] = {
        "consistent_hashing_lb_config": {"hash_balance_factor": _BALANCE_FACTOR}
    }
    return config


def _lua_filter() -> Config:
    return {
        "name": "envoy.filters.http.lua",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua",
            "default_source_code": {"inline_string": _LUA.read_text()},
        },
    }


def _manager(config: Config) -> Config:
    (listener,) = config["static_resources"]["listeners"]
    manager: Config = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def _cluster(config: Config, name: str) -> Config:
    (found,) = (one for one in config["static_resources"]["clusters"] if one["name"] == name)
    cluster: Config = found
    return cluster
