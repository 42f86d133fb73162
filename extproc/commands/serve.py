"""`extproc serve`: runs the sidecar."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from extproc.adapters.observability import logs
from extproc.adapters.shared_state.server import SharedStateServer
from extproc.app import StartError, serve
from extproc.commands.console import OK, Parser, complain, file_path, flag, optional, switch
from extproc.commands.values import (
    address,
    config_map,
    name_server,
    one_of,
    otlp_url,
    seconds,
    shared_state_url,
)
from extproc.edge.grpc.server import Transport
from extproc.edge.tls import KeyPair
from extproc.settings import Settings


def add(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the sidecar",
        description="Serves Envoy's ext_proc filter. On SIGTERM it drains: it becomes unready, "
        "accepts no new streams, and gives open streams --grace seconds to end.",
        examples={
            "extproc serve --models models.yaml": "serve the models of a file",
            "extproc serve --models models.yaml --listen unix:/run/extproc/extproc.sock": (
                "listen on a Unix socket"
            ),
            "extproc serve --models-configmap inference/models --listen 0.0.0.0:9002": (
                "serve the models of a ConfigMap"
            ),
            "kill -TERM PID": "drain, then exit",
        },
        exits={0: "the sidecar has drained", 2: "bad arguments, or a bad first models document"},
    )
    for add_flags in _FLAGS:
        add_flags(parser)
    parser.set_defaults(run=run)


def _add_addresses(parser: Parser) -> None:
    flag(
        parser,
        "--listen",
        "127.0.0.1:9002",
        address,
        "ADDR",
        "address for Envoy's gRPC connections",
    )
    flag(
        parser,
        "--admin",
        "127.0.0.1:9090",
        address,
        "ADDR",
        "address for metrics, health, state and the status page",
    )
    switch(parser, "--no-status-page", "serve no status page at / of the admin address")


def _add_models(parser: Parser) -> None:
    optional(
        parser,
        "--models",
        file_path,
        "FILE",
        "the models document; changes take effect without a restart",
    )
    optional(
        parser,
        "--models-configmap",
        config_map,
        "NAMESPACE/NAME",
        "the ConfigMap whose key models.yaml holds the models document, instead of --models",
    )


def _add_discovery(parser: Parser) -> None:
    optional(
        parser,
        "--kubeconfig",
        file_path,
        "FILE",
        "credentials for Kubernetes (default: the pod's own, else kubectl's)",
    )
    switch(
        parser,
        "--allow-loopback",
        "allow loopback addresses as discovered endpoints, for local work",
    )
    optional(
        parser,
        "--dns-server",
        name_server,
        "IP[:PORT]",
        "name server for host names in 'endpoints' (default: those of /etc/resolv.conf)",
    )


def _add_routing(parser: Parser) -> None:
    switch(
        parser,
        "--single-endpoint",
        "send no second candidate: for gateways that accept only one address in "
        "x-gateway-destination-endpoint",
    )
    flag(
        parser,
        "--unknown-paths",
        "refuse",
        one_of("refuse", "pass"),
        "ACTION",
        "what to do with a request whose path is not an inference path: refuse (404), or pass it "
        "to Envoy's other routes without a decision",
    )


def _add_transport(parser: Parser) -> None:
    optional(
        parser,
        "--transport",
        one_of("fast", "grpcio"),
        "NAME",
        "gRPC implementation: fast (built in), or grpcio, which needs the extra of that name "
        "(default: fast)",
    )
    optional(
        parser,
        "--tls-cert",
        file_path,
        "FILE",
        "certificate for Envoy's gRPC connections; a renewed file takes effect without a restart "
        "(default: plain text)",
    )
    optional(parser, "--tls-key", file_path, "FILE", "private key of --tls-cert")
    optional(
        parser,
        "--tls-client-ca",
        file_path,
        "FILE",
        "CA that must have signed Envoy's client certificate (default: Envoy needs none)",
    )
    flag(parser, "--grace", "25", seconds, "SECONDS", "time for open streams to end after SIGTERM")


def _add_shared_state(parser: Parser) -> None:
    optional(
        parser,
        "--shared-state",
        shared_state_url,
        "URL",
        "Redis or Valkey through which sidecars share their requests in flight and what caches "
        "hold: redis://, rediss:// or unix:// (default: no shared state)",
    )
    flag(
        parser,
        "--shared-state-key",
        "extproc",
        str,
        "KEY",
        "beginning of the keys on that server; sidecars with the same one share their state",
    )
    optional(
        parser,
        "--shared-state-password-file",
        file_path,
        "FILE",
        "password for that server; a changed file is used for the next connection",
    )


def _add_tracing(parser: Parser) -> None:
    optional(
        parser,
        "--otlp",
        otlp_url,
        "URL",
        "OpenTelemetry receiver that gets a span for each decision of a sampled trace: over gRPC "
        "for grpc://, grpcs:// and port 4317, else over HTTP (default: no traces)",
    )


def _add_logging(parser: Parser) -> None:
    flag(
        parser,
        "--log-level",
        "info",
        one_of("debug", "info", "warning", "error"),
        "LEVEL",
        "debug (a line for each request), info, warning or error",
    )
    flag(parser, "--log-format", "text", one_of("text", "json"), "FORMAT", "text or json")
    switch(
        parser,
        "--log-prompts",
        "at level debug, log the text on which each decision is based: the beginning of the "
        "prompt, or a session's header; without this flag, no prompt is logged",
    )


_FLAGS = (
    _add_addresses,
    _add_models,
    _add_discovery,
    _add_routing,
    _add_transport,
    _add_shared_state,
    _add_tracing,
    _add_logging,
)


def run(arguments: argparse.Namespace) -> int:
    problem = _conflict(arguments)
    if problem is not None:
        return complain(f"extproc serve: {problem}")
    tls = None
    if arguments.tls_cert is not None:
        tls = KeyPair(arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca)
    logs.configure(arguments.log_level, arguments.log_format)
    settings = Settings(
        listen=arguments.listen,
        admin=arguments.admin,
        models=arguments.models or arguments.models_configmap,
        grace=arguments.grace,
        kubeconfig=arguments.kubeconfig,
        allow_loopback=arguments.allow_loopback,
        dns_server=arguments.dns_server,
        single_endpoint=arguments.single_endpoint,
        pass_unknown=arguments.unknown_paths == "pass",
        log_prompts=arguments.log_prompts,
        transport=arguments.transport or "fast",
        tls=tls,
        status_page=not arguments.no_status_page,
        shared_state=_shared_state(arguments),
        otlp=arguments.otlp,
    )
    try:
        with asyncio.Runner(loop_factory=_event_loop(settings.transport)) as runner:
            runner.run(serve(settings))
    except StartError as error:
        logs.flush()
        return complain(str(error))
    return OK


def _shared_state(arguments: argparse.Namespace) -> SharedStateServer | None:
    if arguments.shared_state is None:
        return None
    return SharedStateServer(
        arguments.shared_state, arguments.shared_state_key, arguments.shared_state_password_file
    )


def _conflict(arguments: argparse.Namespace) -> str | None:
    """Return an error about flags that do not work together; None if they do."""
    if (arguments.models is None) == (arguments.models_configmap is None):
        return (
            "give either --models FILE or --models-configmap NAMESPACE/NAME "
            "(see extproc serve --help)"
        )
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        return "give --tls-cert and --tls-key together"
    if arguments.tls_client_ca is not None and arguments.tls_cert is None:
        return "--tls-client-ca needs --tls-cert and --tls-key"
    if arguments.transport == "grpcio" and not _has_grpcio():
        return "--transport grpcio needs grpcio: pip install 'extproc-router[grpcio]'"
    if arguments.shared_state is None and arguments.shared_state_password_file is not None:
        return "--shared-state-password-file needs --shared-state"
    if arguments.shared_state is not None and find_spec("redis") is None:
        return "--shared-state needs redis: pip install 'extproc-router[shared]'"
    if arguments.otlp is not None and not arguments.otlp.is_installed():
        return "--otlp needs OpenTelemetry: pip install 'extproc-router[otel]'"
    return None


def _has_grpcio() -> bool:
    return all(find_spec(package) is not None for package in ("grpc", "grpc_health"))


def _event_loop(transport: Transport) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop's event loop if it is installed, else None.

    To echo 5 kB over loopback took 12 us of CPU time with it and 30 us without.
    """
    if transport == "grpcio" or find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory
