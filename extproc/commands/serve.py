"""`extproc serve`: runs the sidecar."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from extproc.adapters.observability import logs
from extproc.app import Settings, StartError, serve
from extproc.commands.console import OK, Parser, complain, flag, optional, switch
from extproc.commands.values import address, config_map, name_server, one_of, seconds
from extproc.edge.grpc.server import Transport
from extproc.edge.tls import KeyPair


def add(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the sidecar",
        description="Answers Envoy's ext_proc filter. SIGTERM drains: unready first, then no new "
        "streams, then --grace seconds for those that run.",
        epilog="Every flag can be given as an environment variable: --listen as EXTPROC_LISTEN, "
        "--log-level as EXTPROC_LOG_LEVEL, and so on. Exit code 0 after a drain, 2 for bad "
        "arguments or a bad first models document.",
    )
    flag(parser, "--listen", "127.0.0.1:9002", address, "ADDR", "where Envoy connects")
    flag(parser, "--admin", "127.0.0.1:9090", address, "ADDR", "metrics, health and state")
    optional(parser, "--models", Path, "FILE", "the models document; changes take effect live")
    optional(
        parser,
        "--models-configmap",
        config_map,
        "NAMESPACE/NAME",
        "or the ConfigMap whose key models.yaml holds it",
    )
    optional(
        parser,
        "--kubeconfig",
        Path,
        "FILE",
        "credentials for Kubernetes (default: the pod's own, else those of kubectl)",
    )
    switch(
        parser,
        "--allow-loopback",
        "discovered endpoints may be loopback addresses, for local work",
    )
    optional(
        parser,
        "--dns-server",
        name_server,
        "IP[:PORT]",
        "name server for host names in 'endpoints' (default: those of /etc/resolv.conf)",
    )
    switch(
        parser,
        "--single-endpoint",
        "name no second candidate: for gateways that take one address, and no list, in "
        "x-gateway-destination-endpoint",
    )
    flag(
        parser,
        "--unknown-paths",
        "refuse",
        one_of("refuse", "pass"),
        "ACTION",
        "what becomes of a request whose path is no inference path: refuse (404), or pass, which "
        "leaves it undecided to Envoy's other routes",
    )
    optional(
        parser,
        "--transport",
        one_of("fast", "grpcio"),
        "NAME",
        "what carries gRPC: fast, our own; or grpcio, which needs the extra of that name (default: "
        "fast)",
    )
    optional(
        parser,
        "--tls-cert",
        Path,
        "FILE",
        "certificate for the port where Envoy connects; renewed live (default: plain text)",
    )
    optional(parser, "--tls-key", Path, "FILE", "its private key")
    optional(
        parser,
        "--tls-client-ca",
        Path,
        "FILE",
        "who must have signed the certificate that Envoy shows (default: it needs none)",
    )
    flag(parser, "--grace", "25", seconds, "SECONDS", "for running streams after SIGTERM")
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
        "at level debug, a request's line shows the text that the decision hangs on: the beginning "
        "of its prompt, or a session's header; no prompt is logged otherwise",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if (arguments.models is None) == (arguments.models_configmap is None):
        return complain(
            "extproc serve: give either --models FILE or --models-configmap NAMESPACE/NAME "
            "(see extproc serve --help)"
        )
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        return complain("extproc serve: --tls-cert and --tls-key go together")
    if arguments.tls_client_ca is not None and arguments.tls_cert is None:
        return complain("extproc serve: --tls-client-ca needs --tls-cert and --tls-key")
    tls = None
    if arguments.tls_cert is not None:
        tls = KeyPair(arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca)
    if arguments.transport == "grpcio" and not _has_grpcio():
        return complain(
            "extproc serve: --transport grpcio needs grpcio: pip install 'extproc-router[grpcio]'"
        )
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
    )
    try:
        with asyncio.Runner(loop_factory=_event_loop(settings.transport)) as runner:
            runner.run(serve(settings))
    except StartError as error:
        logs.flush()
        return complain(str(error))
    return OK


def _has_grpcio() -> bool:
    return all(find_spec(package) is not None for package in ("grpc", "grpc_health"))


def _event_loop(transport: Transport) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed: to echo 5 kB over loopback took 12 us of CPU with it, 30
    without.
    """
    if transport == "grpcio" or find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory
