"""Envoy configurations for tests, built from a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import indent
from typing import Any

import yaml

from extproc.envoy.locate import managers
from extproc.envoy.merge import merge
from extproc.envoy.tree import parse

ENDPOINTS = ("10.0.0.1:8000", "10.0.0.2:8000")

APP = "- match: {prefix: /app}\n  route: {cluster: app}\n"
CATCH_ALL = "- match: {prefix: /}\n  route: {cluster: app}\n"
ROUTER = """\
- name: envoy.filters.http.router
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
"""
CORS = """\
- name: envoy.filters.http.cors
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.http.cors.v3.Cors
"""
JSON_LOG = """\
- name: envoy.access_loggers.stdout
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog
    log_format:
      json_format:
        status: "%RESPONSE_CODE%"
"""
CLUSTER = """\
- name: {name}
  type: STATIC
  load_assignment:
    cluster_name: {name}
    endpoints:
    - lb_endpoints:
      - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 7000}}}}}}
"""


def listener(
    routes: str = APP + CATCH_ALL,
    *,
    name: str = "edge",
    host: str = "site",
    filters: str = ROUTER,
    log: str = "",
    more: str = "",
) -> str:
    """Return a listener with one connection manager; `more` are entries of the manager."""
    manager = "http_connection_manager.v3.HttpConnectionManager"
    log = f"access_log:\n{log}" if log else ""
    config = f"""\
"@type": type.googleapis.com/envoy.extensions.filters.network.{manager}
stat_prefix: {name}
{more}{log}route_config:
  virtual_hosts:
  - name: {host}
    domains: ["*"]
    routes:
{indent(routes, "    ")}http_filters:
{filters}"""
    return f"""\
- name: {name}
  address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}
  filter_chains:
  - filters:
    - name: envoy.filters.network.http_connection_manager
      typed_config:
{indent(config, " " * 8)}"""


def configuration(listeners: Sequence[str] = (), clusters: str = "") -> str:
    """Return a configuration with these listeners, a cluster `app` and more clusters."""
    shown = indent("".join(listeners or [listener()]), "  ")
    known = indent(CLUSTER.format(name="app") + clusters, "  ")
    return f"# mine\nstatic_resources:\n  listeners:\n{shown}  clusters:\n{known}"


def merged(text: str, **options: Any) -> str:
    """Return the configuration with the pieces."""
    return merge(text, **{"endpoints": ENDPOINTS, **options}).text


def manager(text: str, number: int = 0) -> Any:
    """Return the data of a connection manager."""
    return managers(parse(text))[number].node.data()


def routes(text: str, number: int = 0) -> list[Any]:
    """Return the routes of a connection manager's first virtual host."""
    found: list[Any] = manager(text, number)["route_config"]["virtual_hosts"][0]["routes"]
    return found


def cluster(text: str, name: str) -> Any:
    found = yaml.safe_load(text)["static_resources"]["clusters"]
    return next(one for one in found if one["name"] == name)


def names(found: list[Any]) -> list[str]:
    """Return the names of routes, or their path conditions."""
    return [one.get("name") or str(next(iter(one["match"].values()))) for one in found]
