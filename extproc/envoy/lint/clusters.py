"""Rules for the clusters that LLM requests and the sidecar use."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.envoy.addresses import addresses_of
from extproc.envoy.lint.finding import Finding, error, warning
from extproc.envoy.lint.subject import Subject, number, seconds
from extproc.envoy.locate import cluster, cluster_of
from extproc.envoy.nodes import Node

_CONNECT = 2.0
_DEFAULTS = {
    "max_connections": 1024,
    "max_pending_requests": 1024,
    "max_requests": 1024,
    "max_retries": 3,
}
_OPTIONS = "typed_extension_protocol_options"
_HTTP = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"


def cluster_missing(subject: Subject) -> Iterator[Finding]:
    names = {cluster_of(one.node): one.node for one in subject.llm_routes}
    for name, place in {**names, subject.sidecar_cluster: subject.ext_proc}.items():
        if (
            name
            and cluster(subject.root, name) is None
            and subject.root.get("dynamic_resources") is None
        ):
            yield error(
                place,
                subject.where,
                f"cluster {name} does not exist",
                "Envoy refuses the configuration or responds 503",
                "add the cluster: `extproc envoy-config` prints one",
            )


def fallback_empty(subject: Subject) -> Iterator[Finding]:
    for one in _used(subject):
        kind = one.text("type")
        if kind in ("STATIC", "STRICT_DNS", "LOGICAL_DNS") and not addresses_of(one):
            yield error(
                one,
                f"cluster {one.text('name')}",
                "has no endpoints",
                "its requests get 503; while the sidecar is down, these are all requests",
                "run `extproc envoy-config --into FILE --endpoint HOST:PORT`",
            )


def sidecar_without_http2(subject: Subject) -> Iterator[Finding]:
    one = cluster(subject.root, subject.sidecar_cluster)
    if one is None:
        return
    options = one.entries_at(_OPTIONS).get(_HTTP)
    explicit = options.at("explicit_http_config.http2_protocol_options") if options else None
    automatic = options.get("auto_config") if options else None
    if explicit is None and automatic is None and one.get("http2_protocol_options") is None:
        yield error(
            one,
            f"cluster {one.text('name')}",
            "has no HTTP/2",
            "gRPC needs HTTP/2, so Envoy cannot call the sidecar",
            f"set {_OPTIONS}: "
            f"{{{_HTTP}: {{explicit_http_config: {{http2_protocol_options: {{}}}}}}}}",
        )


def breakers_at_defaults(subject: Subject) -> Iterator[Finding]:
    for one in _used(subject):
        thresholds = one.list("circuit_breakers.thresholds")
        default = [t for t in thresholds if t.text("priority") in ("", "DEFAULT")]
        low = [
            f"{key} {number(default[0], key, least) if default else least:,}"
            for key, least in _DEFAULTS.items()
            # Envoy never retries its gRPC streams to the sidecar.
            if (key != "max_retries" or one.text("name") != subject.sidecar_cluster)
            and (not default or number(default[0], key, least) <= least)
        ]
        if low:
            yield warning(
                one.get("circuit_breakers") or one,
                f"cluster {one.text('name')}",
                f"circuit breakers allow {', '.join(low)}",
                "LLM streams are long, so busy hours reach these limits, and Envoy responds 503",
                "set each of them to 20000, also max_retries",
            )


def connect_timeout_short(subject: Subject) -> Iterator[Finding]:
    for one in _used(subject):
        text = one.text("connect_timeout")
        value = seconds(text) if text else None
        if value is not None and value < _CONNECT:
            yield warning(
                one.get("connect_timeout") or one,
                f"cluster {one.text('name')}",
                f"connect_timeout is {text}",
                "in a burst, Envoy handles new connections late, and a lost SYN is repeated only "
                "after a second, so connections to healthy endpoints fail",
                "set connect_timeout: 2s",
            )


def _used(subject: Subject) -> list[Node]:
    """Return the clusters of LLM routes, the members of composite ones, and the sidecar's."""
    names = [cluster_of(one.node) for one in subject.llm_routes] + [subject.sidecar_cluster]
    found: dict[str, Node] = {}
    for name in names:
        one = cluster(subject.root, name)
        if one is None:
            continue
        found[name] = one
        for member in one.list("cluster_type.typed_config.clusters"):
            inner = cluster(subject.root, member.text("name"))
            if inner is not None:
                found[member.text("name")] = inner
    return list(found.values())
