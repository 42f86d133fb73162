"""Writes docs/reference.md from the code: keys, flags, metrics, refusals, reasons.

Meanings are the docstrings that follow an attribute or an enum's member, help
texts and the docstrings of classes, so the page says what the code says. What has
no docstring where one is needed stops the page from being written.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from itertools import pairwise
from random import Random
from textwrap import dedent, wrap
from typing import Any, NamedTuple, cast, get_args
from unittest.mock import patch

from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric
from pydantic import BaseModel

from extproc import cli
from extproc.adapters.configuration.document import MAX_BYTES
from extproc.adapters.kubernetes.screening import Refused
from extproc.adapters.observability.telemetry import Telemetry
from extproc.core import schema as spec
from extproc.core.fleet.ledger import Ledger
from extproc.core.fleet.signals import Signals
from extproc.core.request.form_body import MAX_PARTS
from extproc.core.request.json_limits import (
    ALWAYS_PARSED_BYTES,
    MAX_PARSED_BYTES,
    MAX_PARSED_VALUES,
)
from extproc.core.request.paths import ANTHROPIC_VERSION, INFERENCE_PATHS, MODELS_PATH, Api
from extproc.core.request.refusals import NoEndpoints, Refusal
from extproc.core.routing.router import Router
from extproc.core.schema import (
    DEFAULT_SESSION_SOURCES,
    PREFIX_SOURCES,
    FilterName,
    LoadBalancingSpec,
    ModelsSpec,
    StrategyName,
)
from extproc.core.strategies import Reason, build
from extproc.core.strategies.presets import PRESETS, filter_of

Schema = dict[str, Any]
Row = Sequence[str]

NOTHING = "-"
WIDTH = 120


class Undocumented(Exception):
    """Something has no docstring where the reference needs one."""


class Flag(NamedTuple):
    """A flag or argument of a command."""

    name: str
    variable: str
    default: str
    meaning: str


class MetricRow(NamedTuple):
    """A metric as Prometheus shows it."""

    name: str
    kind: str
    labels: Sequence[str]
    meaning: str


def page() -> str:
    """The whole page."""
    return "\n".join(_lines())


def _lines() -> Iterator[str]:
    yield "# Reference"
    yield ""
    yield "Written from the code by `make reference`."
    yield from _models_document()
    yield from _strategies()
    yield from _commands()
    yield from _metrics()
    yield from _paths()
    yield from _refusals()
    yield from _reasons()
    yield from _refused_addresses()
    yield ""


def _models_document() -> Iterator[str]:
    yield from _heading("The models document")
    yield f"YAML of at most {MAX_BYTES:,} bytes. Unknown keys are errors."
    schema = ModelsSpec.model_json_schema()
    for path, model, properties in _mappings("", "ModelsSpec", schema, schema["$defs"]):
        if path:
            yield from _heading(f"`{path}`", level=3)
            yield from _paragraph(_summary(model))
        meanings = documented(model, model.model_fields).values()
        rows = [
            (f"`{key}`", values(one), _default(one), meaning)
            for meaning, (key, one) in zip(meanings, properties.items(), strict=True)
        ]
        yield from _table(("key", "value", "default", "meaning"), rows)


def _mappings(
    path: str, name: str, schema: Schema, others: Schema
) -> Iterator[tuple[str, type[BaseModel], Schema]]:
    """Each mapping of the document: its path, its class, the schemas of its keys."""
    yield path, getattr(spec, name), schema["properties"]
    for key, one in schema["properties"].items():
        reference = re.search(r"#/\$defs/(\w+)", str(one))
        if reference:
            below = f"{path}.{key}".lstrip(".") + ("[]" if "items" in one else "")
            yield from _mappings(below, reference[1], others[reference[1]], others)


def values(schema: Schema) -> str:
    """What a key may hold."""
    if "$ref" in schema:
        return "mapping, below"
    if "anyOf" in schema:
        return " or ".join(values(one) for one in schema["anyOf"] if one != {"type": "null"})
    if "enum" in schema:
        return _codes(schema["enum"])
    if "format" in schema:
        return str(schema["format"])
    match schema["type"]:
        case "boolean":
            return "`true` or `false`"
        case "number":
            return f"number from {schema['minimum']:,} to {schema['maximum']:,}"
        case "array":
            return f"list of: {values(schema['items'])}"
        case "integer":
            return f"whole number from {schema['minimum']:,} to {schema['maximum']:,}"
        case "string":
            return f"text of {schema['minLength']:,} to {schema['maxLength']:,} characters"
        case kind:
            raise TypeError(f"the reference has no words for {kind!r}")


def _default(schema: Schema) -> str:
    if "default" not in schema:
        return "required"
    if isinstance(schema["default"], dict):
        return "those below"
    if isinstance(schema["default"], bool):
        return f"`{str(schema['default']).lower()}`"
    return f"`{schema['default']}`" if schema["default"] else "none"


def documented(cls: type, names: Iterable[str]) -> dict[str, str]:
    """The docstrings of these attributes. Raises Undocumented if one has none."""
    found = attribute_docstrings(cls)
    for name in names:
        if name not in found:
            raise Undocumented(f"{cls.__name__}.{name} has no docstring")
    return {name: found[name] for name in names}


def attribute_docstrings(cls: type) -> dict[str, str]:
    """The strings that follow assignments in a class's body, each as one line."""
    tree = ast.parse(dedent(inspect.getsource(cls)))
    body = next(one.body for one in tree.body if isinstance(one, ast.ClassDef))
    found = {}
    for assignment, following in pairwise(body):
        match assignment, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = _one_line(text)
    return found


def _strategies() -> Iterator[str]:
    yield from _heading("Strategies")
    yield "The values of `strategy`:"
    rows = [(f"`{name}`", strategy_in_words(name)) for name in get_args(StrategyName)]
    yield from _table(("strategy", "what it chooses"), rows)
    yield ""
    yield "The values of `filter` in a chain, and what each keeps:"
    filters = [(f"`{name}`", _filter_in_words(name)) for name in get_args(FilterName)]
    yield from _table(("filter", "what it keeps"), filters)
    yield ""
    yield "`PrefixHash` hashes a key of each request. The values of `prefixSource`:"
    rows = [(f"`{name}`", meaning) for name, meaning in PREFIX_SOURCES.items()]
    yield from _table(("source", "the key"), rows)
    yield ""
    yield "`Session` looks for a session's id in this order, unless `sessionSources` lists another:"
    yield ""
    yield from (f"{place}. `{source}`" for place, source in enumerate(DEFAULT_SESSION_SOURCES, 1))


def strategy_in_words(name: str) -> str:
    """How the module of a strategy begins, less the name. Raises Undocumented."""
    preset = PRESETS.get(cast("StrategyName", name))
    if preset is not None:
        return f"The chain {', '.join(f'`{one.filter}`' for one in preset)}."
    filters = [{"filter": "LeastQueue"}] if name == "Chain" else []
    chosen = LoadBalancingSpec.model_validate({"strategy": name, "chain": filters})
    module = sys.modules[type(build(chosen, Random(), Signals(lambda: 0.0))).__module__]
    start, colon, rest = (module.__doc__ or "").partition(":")
    if start != name or not colon:
        raise Undocumented(f"the docstring of {module.__name__} does not begin with '{name}:'")
    words = _one_line(" ".join(rest.split("\n\n")[:2]))
    return words[:1].upper() + words[1:]


def _filter_in_words(name: FilterName) -> str:
    spec = LoadBalancingSpec.model_validate({"strategy": "Chain", "chain": [{"filter": name}]})
    built = filter_of(spec.chain[0], spec, Signals(lambda: 0.0), Random())
    return _one_line((type(built).__doc__ or "").replace("\n\n", " "))


def _commands() -> Iterator[str]:
    yield from _heading("Commands")
    yield "`ADDR` is `HOST:PORT` or `unix:PATH`. A flag that is given wins over its variable."
    for command, parser in _parsers().items():
        yield from _heading(f"`{command}`", level=3)
        yield from _paragraph(f"{parser.description} {parser.epilog or ''}")
        rows = [
            (_code(flag.name), _code(flag.variable), flag.default, flag.meaning)
            for flag in flags(command)
        ]
        if rows:
            yield from _table(("flag", "environment variable", "default", "meaning"), rows)


def flags(command: str) -> list[Flag]:
    """The flags and arguments of a command, whatever this process's own environment is."""
    parser = _parser(command, {})
    actions = [action for action in parser._actions if action.dest != "help"]
    # A flag reads its variable if setting that changes the default.
    told = _parser(command, {_variable(action): "true" for action in actions})
    return [
        _flag(parser, action, told.get_default(action.dest) != action.default) for action in actions
    ]


def _parser(command: str, environment: Mapping[str, str]) -> argparse.ArgumentParser:
    with patch.dict(os.environ, environment, clear=True):
        return _parsers()[command]


def _parsers() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command."""
    commands = next(
        one for one in cli.full_parser()._actions if isinstance(one, argparse._SubParsersAction)
    )
    return {parser.prog: parser for parser in commands.choices.values()}


def _flag(parser: argparse.ArgumentParser, action: argparse.Action, by_variable: bool) -> Flag:
    meaning = parser._get_formatter()._expand_help(action)
    said = re.fullmatch(r"(.*) \(default: (.*)\)", meaning)
    name = " ".join(filter(None, [*action.option_strings[-1:], str(action.metavar or "")]))
    return Flag(
        name,
        _variable(action) if by_variable else "",
        "required" if action.required else said[2] if said else NOTHING,
        said[1] if said else meaning,
    )


def _variable(action: argparse.Action) -> str:
    return f"EXTPROC_{action.dest.upper()}"


def _metrics() -> Iterator[str]:
    yield from _heading("Metrics")
    yield "On the admin port under `/metrics`. Where there is `/proc`, those of the process too."
    rows = [
        (f"`{one.name}`", one.kind, _codes(one.labels) or NOTHING, one.meaning)
        for one in metrics(Telemetry(Router(Ledger())))
    ]
    yield from _table(("metric", "type", "labels", "meaning"), rows)


def metrics(telemetry: Telemetry) -> list[MetricRow]:
    """The metrics of a registry, those without samples too."""
    found: list[MetricRow] = []
    for collector in telemetry._registry._collector_to_names:
        if isinstance(collector, MetricWrapperBase):
            described = next(iter(collector.describe()))
            found.append(_metric(described, collector._labelnames))
        else:
            found += [_metric(one, getattr(one, "_labelnames", ())) for one in collector.collect()]
    return sorted(one for one in found if one.name.startswith("extproc_"))


def _metric(metric: Metric, labels: Sequence[str]) -> MetricRow:
    name = metric.name + ("_total" if metric.type == "counter" else "")
    return MetricRow(name, metric.type, labels, metric.documentation)


def _paths() -> Iterator[str]:
    yield from _heading("Paths")
    yield from _paragraph(
        f"The sidecar answers `GET {MODELS_PATH}` with the list of models, and "
        f"`GET {MODELS_PATH}/NAME` with one of them; with the header `{ANTHROPIC_VERSION}` in "
        "Anthropic's shape. `max_model_len` is there where the sidecar has read an endpoint's own "
        "list, which it does for models with `discoverAdapters` and for strategies that read "
        "metrics. The sidecar routes requests to these paths, below any prefix, with or without a "
        "trailing slash. `*` is the id of a stored response, video or voice:"
    )
    read = documented(Api, Api.__members__)
    rows = [
        (_codes(path for path, one in INFERENCE_PATHS.items() if one is api), read[name])
        for name, api in Api.__members__.items()
        if api is not Api.MODELS
    ]
    yield from _table(("path", "what is read"), rows)
    yield ""
    yield from _paragraph(
        "A request that names no model goes by the header `x-model`, else to the only configured "
        "model, if there is no split. Of a path that is not in the table the sidecar refuses "
        "every request, unless `--unknown-paths pass` leaves them to Envoy's other routes."
    )
    yield ""
    yield from _paragraph(
        f"The sidecar parses JSON bodies of up to {ALWAYS_PARSED_BYTES:,} bytes in full. It scans "
        "a larger body to its end for `model`, `cache_salt` and the fields of `sessionSources`. "
        f"It parses the beginning of such a body: up to {MAX_PARSED_BYTES:,} bytes, without images "
        f"in base64, and up to {MAX_PARSED_VALUES:,} strings, commas and opening brackets. The "
        "text after that is counted, but it is not part of the prefix or of a block. A body that "
        "is longer than its parsed beginning must be strict JSON, without `NaN` and `Infinity`. "
        "The scan accepts nesting deeper than 200 levels and numbers with thousands of digits; "
        "the inference server checks those."
    )
    yield ""
    yield f"The sidecar searches the first {MAX_PARTS:,} parts of a multipart form."


def _refusals() -> Iterator[str]:
    yield from _heading("Refusals")
    yield from _paragraph(
        f"Answered by the sidecar in OpenAI's error shape, `{NoEndpoints.code}` with "
        f"`retry-after: {NoEndpoints.RETRY_AFTER_SECONDS}`. On Anthropic's paths (`/v1/messages`, "
        "`/v1/messages/count_tokens`) the shape is Anthropic's. Envoy's `x-request-id` is in the "
        "header of that name, in the field `request_id` of the body, and in the log."
    )
    rows = [
        (str(one.status), f"`{one.code}`", f"`{one.type}`", _summary(one)) for one in refusals()
    ]
    yield from _table(("status", "code", "type", "when"), rows)


def refusals() -> list[type[Refusal]]:
    """Every kind of refusal."""
    return sorted(Refusal.__subclasses__(), key=lambda one: (one.status, one.code))


def _reasons() -> Iterator[str]:
    yield from _heading("Reasons")
    yield "`reason` in the access log and in `extproc explain`: why this endpoint."
    yield ""
    yield from _members(Reason)


def _refused_addresses() -> Iterator[str]:
    yield from _heading("Addresses never routed to")
    yield "`reason` in `extproc_endpoints_refused_total`: why a discovered address is no endpoint."
    yield ""
    yield from _members(Refused)


def _members(enum: type[Enum]) -> Iterator[str]:
    """Those with a docstring, one by one; then the others, whose names say it."""
    meanings = attribute_docstrings(enum)
    for name, member in enum.__members__.items():
        if name in meanings:
            yield f"- `{member.value}`: {meanings[name]}"
    rest = [one.value for name, one in enum.__members__.items() if name not in meanings]
    if rest:
        yield f"- {_codes(rest)}: what the name says."


def _summary(cls: type) -> str:
    """The first paragraph of a class's docstring. Raises Undocumented."""
    if "__doc__" not in vars(cls) or not cls.__doc__:
        raise Undocumented(f"{cls.__name__} has no docstring")
    return _one_line(cls.__doc__.split("\n\n")[0])


def _heading(text: str, level: int = 2) -> Iterator[str]:
    yield ""
    yield f"{'#' * level} {text}"
    yield ""


def _paragraph(text: str) -> list[str]:
    return wrap(text, WIDTH, break_on_hyphens=False)


def _table(header: Row, rows: Iterable[Row]) -> Iterator[str]:
    yield ""
    yield _row(header)
    yield "|" + "---|" * len(header)
    yield from map(_row, rows)


def _row(cells: Row) -> str:
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |"


def _code(text: str) -> str:
    return f"`{text}`" if text else NOTHING


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(map(_code, texts))


def _one_line(text: str) -> str:
    return " ".join(text.split())


if __name__ == "__main__":
    sys.stdout.write(page())
