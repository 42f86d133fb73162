"""The command line: arguments and environment in, exit codes out."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

from extproc import __version__
from extproc.adapters import logs
from extproc.adapters.models_document import DocumentError, parse
from extproc.app import COMPILED, ConfigMapName, Settings, StartError, serve
from extproc.core.spec import ModelsSpec, kubernetes_name
from extproc.edge.server import Transport
from extproc.edge.tls import KeyPair
from extproc.explain import explain

OK = 0
BAD_INPUT = 2


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command; returns the exit code."""
    given = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = _run(given)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader of our output has seen enough; at exit there must be nothing left to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK


def _run(given: Sequence[str]) -> int:
    extension = next((one for one in _extensions() if [one.name] == given[:1]), None)
    if extension is not None:
        return _run_extension(extension, given[1:])
    parsed = _parser().parse_args(given)
    run: Callable[[argparse.Namespace], int] = parsed.run
    return run(parsed)


def _extensions() -> list[EntryPoint]:
    """Commands of packages beside the data path, which it must not import."""
    return sorted(entry_points(group="extproc.commands"), key=lambda one: one.name)


def _extras(extension: EntryPoint) -> str:
    return f"[{','.join(extension.extras)}]" if extension.extras else ""


def _run_extension(extension: EntryPoint, given: Sequence[str]) -> int:
    try:
        run: Callable[[Sequence[str]], int] = extension.load()
        return run(given)
    except ModuleNotFoundError as error:
        if (error.name or "extproc").startswith("extproc"):
            raise
        return _complain(
            f"extproc {extension.name}: {error.name} is not installed: this command needs "
            f"pip install 'extproc{_extras(extension)}'"
        )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="extproc",
        description="Routes LLM requests behind Envoy to the vLLM replica whose prefix cache is "
        "warm, without overloading it.",
    )
    version = f"extproc {__version__}{' (compiled)' if COMPILED else ''}"
    parser.add_argument("--version", action="version", version=version)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_serve(commands)
    _add_check(commands)
    _add_explain(commands)
    for extension in _extensions():
        extras = _extras(extension)
        text = f"of extproc{extras}: see its own --help"
        commands.add_parser(extension.name, help=text, description=f"Comes with {text[3:]}.")
    return parser


def _add_serve(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "serve",
        help="run the sidecar",
        description="Answers Envoy's ext_proc filter. SIGTERM drains: unready first, then no new "
        "streams, then --grace seconds for those that run.",
        epilog="Every flag can be given as an environment variable: --listen as EXTPROC_LISTEN, "
        "--log-level as EXTPROC_LOG_LEVEL, and so on. Exit code 0 after a drain, 2 for bad "
        "arguments or a bad first models document.",
    )
    _flag(parser, "--listen", "127.0.0.1:9002", _address, "ADDR", "where Envoy connects")
    _flag(parser, "--admin", "127.0.0.1:9090", _address, "ADDR", "metrics, health and state")
    _optional(parser, "--models", Path, "FILE", "the models document; changes take effect live")
    _optional(
        parser,
        "--models-configmap",
        _config_map,
        "NAMESPACE/NAME",
        "or the ConfigMap whose key models.yaml holds it",
    )
    _optional(
        parser,
        "--kubeconfig",
        Path,
        "FILE",
        "credentials for Kubernetes (default: the pod's own, else those of kubectl)",
    )
    _switch(
        parser,
        "--allow-loopback",
        "discovered endpoints may be loopback addresses, for local work",
    )
    _switch(
        parser,
        "--single-endpoint",
        "name no second candidate: for gateways that take one address, and no list, in "
        "x-gateway-destination-endpoint",
    )
    _optional(
        parser,
        "--transport",
        _one_of("fast", "grpcio"),
        "NAME",
        "what carries gRPC: fast, our own, in plain text; or grpcio, which knows TLS (default: "
        "fast, with a certificate grpcio)",
    )
    _optional(
        parser,
        "--tls-cert",
        Path,
        "FILE",
        "certificate for the port where Envoy connects; renewed live (default: plain text)",
    )
    _optional(parser, "--tls-key", Path, "FILE", "its private key")
    _optional(
        parser,
        "--tls-client-ca",
        Path,
        "FILE",
        "who must have signed the certificate that Envoy shows (default: it needs none)",
    )
    _flag(parser, "--grace", "25", _seconds, "SECONDS", "for running streams after SIGTERM")
    _flag(
        parser,
        "--log-level",
        "info",
        _one_of("debug", "info", "warning", "error"),
        "LEVEL",
        "debug (a line for each request), info, warning or error",
    )
    _flag(parser, "--log-format", "text", _one_of("text", "json"), "FORMAT", "text or json")
    _switch(
        parser,
        "--log-prompts",
        "at level debug, a request's line shows the text that the decision hangs on: the beginning "
        "of its prompt, or a session's header; no prompt is logged otherwise",
    )
    parser.set_defaults(run=_serve)


def _add_check(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "check",
        help="validate a models document",
        description="Prints a line for every problem, FILE: models[1].key: what is wrong. "
        "Exit code 0 if there is none, else 2.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the models document")
    parser.set_defaults(run=_check)


def _add_explain(commands: argparse._SubParsersAction[Parser]) -> None:
    parser = commands.add_parser(
        "explain",
        help="show what would happen to a request, and why",
        description="Runs a request through the steps that 'serve' would take: model, adapter, "
        "prefix, hash, candidates with their loads, bound, pick. Nothing is sent anywhere.",
    )
    _flag(parser, "--models", None, Path, "FILE", "the models document")
    parser.add_argument(
        "--body", default="-", metavar="FILE|-", help="the request's body (default: stdin)"
    )
    parser.add_argument(
        "--path",
        default="/v1/chat/completions",
        metavar="PATH",
        help="the request's path (default: %(default)s)",
    )
    parser.add_argument(
        "--header",
        action="append",
        default=[],
        type=_header,
        metavar="NAME:VALUE",
        help="a request header; may be repeated",
    )
    parser.add_argument(
        "--head",
        type=_bytes,
        metavar="BYTES",
        help="show the router no more of the body than this, as Envoy's buffer limit does",
    )
    parser.add_argument(
        "--inflight",
        action="append",
        default=[],
        type=_load,
        metavar="IP:PORT=N",
        help="assume N requests in flight on an endpoint; may be repeated (default: none)",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.set_defaults(run=_explain)


def _flag(
    parser: argparse.ArgumentParser,
    name: str,
    default: str | None,
    kind: Callable[[str], object],
    metavar: str,
    text: str,
) -> None:
    """A flag whose default is its environment variable, if that is set."""
    default = _environment(name) or default
    shown = f"{text} (default: %(default)s)" if default else text
    parser.add_argument(
        name, default=default, required=default is None, type=kind, metavar=metavar, help=shown
    )


def _optional(
    parser: argparse.ArgumentParser,
    name: str,
    kind: Callable[[str], object],
    metavar: str,
    text: str,
) -> None:
    parser.add_argument(name, default=_environment(name), type=kind, metavar=metavar, help=text)


def _switch(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    default = _is_true(_environment(name))
    parser.add_argument(name, action="store_true", default=default, help=text)


def _environment(flag: str) -> str | None:
    # An empty variable is one that was not set: deployments template them.
    return os.environ.get("EXTPROC_" + flag[2:].replace("-", "_").upper()) or None


def _serve(arguments: argparse.Namespace) -> int:
    if (arguments.models is None) == (arguments.models_configmap is None):
        return _complain(
            "extproc serve: give either --models FILE or --models-configmap NAMESPACE/NAME "
            "(see extproc serve --help)"
        )
    if (arguments.tls_cert is None) != (arguments.tls_key is None):
        return _complain("extproc serve: --tls-cert and --tls-key go together")
    if arguments.tls_client_ca is not None and arguments.tls_cert is None:
        return _complain("extproc serve: --tls-client-ca needs --tls-cert and --tls-key")
    tls = None
    if arguments.tls_cert is not None:
        tls = KeyPair(arguments.tls_cert, arguments.tls_key, arguments.tls_client_ca)
    if tls is not None and arguments.transport == "fast":
        return _complain("extproc serve: for TLS there is --transport grpcio")
    logs.configure(arguments.log_level, arguments.log_format)
    settings = Settings(
        listen=arguments.listen,
        admin=arguments.admin,
        models=arguments.models or arguments.models_configmap,
        grace=arguments.grace,
        kubeconfig=arguments.kubeconfig,
        allow_loopback=arguments.allow_loopback,
        single_endpoint=arguments.single_endpoint,
        log_prompts=arguments.log_prompts,
        transport=arguments.transport or ("fast" if tls is None else "grpcio"),
        tls=tls,
    )
    try:
        with asyncio.Runner(loop_factory=_event_loop(settings.transport)) as runner:
            runner.run(serve(settings))
    except StartError as error:
        logs.flush()
        return _complain(str(error))
    return OK


def _event_loop(transport: Transport) -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop's, where it is installed: to echo 5 kB over loopback took 12 us of CPU with it, 30
    without.
    """
    if transport == "grpcio" or find_spec("uvloop") is None:
        return None
    factory: Callable[[], asyncio.AbstractEventLoop] = import_module("uvloop").new_event_loop
    return factory


def _check(arguments: argparse.Namespace) -> int:
    try:
        parse(arguments.file.read_bytes())
    except DocumentError as error:
        return _complain(*(f"{arguments.file}: {problem}" for problem in error.problems))
    except OSError as error:
        return _complain(f"{arguments.file}: {error.strerror}")
    return OK


def _explain(arguments: argparse.Namespace) -> int:
    try:
        spec = _static(parse(arguments.models.read_bytes()))
        body = _body(arguments.body)
    except DocumentError as error:
        return _complain(*(f"{arguments.models}: {problem}" for problem in error.problems))
    except OSError as error:
        return _complain(f"{error.filename}: {error.strerror}")
    head = body if arguments.head is None else body[: arguments.head]
    explanation = explain(
        spec,
        head,
        complete=len(head) == len(body),
        path=arguments.path,
        # Clients say how long the body is, though not all of it may be shown.
        headers={"content-length": str(len(body)), **dict(arguments.header)},
        inflight=dict(arguments.inflight),
    )
    if arguments.json:
        print(json.dumps(explanation.as_dict()))
    else:
        print(*explanation.lines(), sep="\n")
    return OK


def _static(spec: ModelsSpec) -> ModelsSpec:
    """The document, if it says itself where the models run. Raises DocumentError."""
    problems = [
        f"models[{position}]: explain looks at no cluster: list 'endpoints' (see /debug/state)"
        for position, model in enumerate(spec.models)
        if model.source is not None
    ]
    if problems:
        raise DocumentError(problems)
    return spec


def _body(source: str) -> bytes:
    return sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()


def _complain(*lines: str) -> int:
    print(*lines, sep="\n", file=sys.stderr)
    return BAD_INPUT


def _address(text: str) -> str:
    host, _, port = text.rpartition(":")
    if text.startswith("unix:") and text != "unix:":
        return text
    if not host or not port.isdecimal() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is neither HOST:PORT nor unix:PATH")
    return text


def _config_map(text: str) -> ConfigMapName:
    namespace, _, name = text.partition("/")
    try:
        return ConfigMapName(kubernetes_name(namespace), kubernetes_name(name))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAMESPACE/NAME") from None


def _is_true(text: str | None) -> bool:
    return text is not None and text.lower() in ("1", "true", "yes", "on")


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def _bytes(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes")
    return int(text)


def _one_of(*options: str) -> Callable[[str], str]:
    def choose(text: str) -> str:
        if text.lower() not in options:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of {', '.join(options)}")
        return text.lower()

    return choose


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:VALUE")
    return name.strip(), value.strip()


def _load(text: str) -> tuple[str, int]:
    address, _, count = text.rpartition("=")
    if not address or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not IP:PORT=N")
    return address, int(count)
