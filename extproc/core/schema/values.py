"""The kinds of values in the models document and their validation."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel

from extproc.core.schema.addresses import endpoint_address

MAX_NAME_LENGTH = 256
"""Characters in the name of a model, alias or adapter."""

UNKNOWN_MODEL = "unknown"
"""The label of refused requests in metrics, if their model is not known."""

HEADER_SOURCE = "Header:"

PREFIX_SOURCES = {
    "FirstUserMessage": "The beginning of the first user message, or of a completion's prompt, as "
    "in KubeAI. For chats with different first messages.",
    "SystemAndFirstUserMessage": "The beginning of the system prompt followed by the first user "
    "message. For many system prompts. Set `prefixCharLength` to more than their length; otherwise "
    "all chats with the same system prompt have the same key.",
    "PromptHead": "The beginning of the whole prompt, in the body's order: tools, roles, "
    "messages. For agents, completions and long shared documents.",
    "Session": "The whole session id, from the first of `sessionSources` that has one. If none has "
    "one, the key is that of `FirstUserMessage`. For agents.",
    "Header:<name>": "The whole value of this request header. For session affinity.",
}
"""The sources of a request's key, with their descriptions."""

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROLS = r"\u0000-\u001f\u007f-\u009f"
_CONTROL = re.compile(f"[{_CONTROLS}]")


def unique(values: list[str]) -> list[str]:
    """Return the values. Raises ValueError if one occurs twice."""
    seen = set()
    for value in values:
        if value in seen:
            raise ValueError(f"{value!r} is listed twice")
        seen.add(value)
    return values


def plain_name(text: str) -> str:
    """Return the name if it can be the value of a header. Raises ValueError.

    Envoy answers 500 to a request if the sidecar sets a header to a value with control characters.
    """
    if text != text.strip():
        raise ValueError(f"{text!r} begins or ends with white space")
    if control := _CONTROL.search(text):
        raise ValueError(f"{text!r} has a control character, {control[0]!r}")
    return text


def is_header_name(text: str) -> bool:
    """Return True if a request header can have this name."""
    return _HEADER_NAME.fullmatch(text) is not None


def suggestion(given: object, options: Sequence[str]) -> str:
    """Return the end of an error message that suggests the most similar option, or ""."""
    if not isinstance(given, str):
        return ""
    folded = {option.lower(): option for option in options}
    close = difflib.get_close_matches(given.lower(), folded, n=1, cutoff=0.6)
    return f", did you mean {folded[close[0]]!r}?" if close else ""


def _prefix_source(text: str) -> str:
    header = text.removeprefix(HEADER_SOURCE)
    if header != text and is_header_name(header):
        return HEADER_SOURCE + header.lower()
    if text not in PREFIX_SOURCES or header != text:
        sources = list(PREFIX_SOURCES)
        close = suggestion(text, [source for source in sources if source.isalpha()])
        raise ValueError(f"{text!r} is not one of {', '.join(sources)}{close}")
    return text


def kubernetes_name(text: str) -> str:
    """Return the name of a Kubernetes object if it is valid. Raises ValueError."""
    if len(text) > 253 or not _DNS_NAME.fullmatch(text):
        raise ValueError(
            f"{text!r} is not a Kubernetes name: use lowercase letters, digits, '-' and '.'"
        )
    return text


def _service_port(port: object) -> str | int:
    if isinstance(port, str) and port:
        # Port names contain a letter. Templates write numbers in quotes.
        if not port.isdecimal():
            return port
        port = int(port)
    if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536:
        return port
    raise ValueError("give the port's name or its number, from 1 to 65535")


def described(form: str, **schema: Any) -> WithJsonSchema:
    """Describe a value by its form, for the reference, and by its JSON Schema, for editors.

    A schema may accept more than the validator does, but never less.
    """
    return WithJsonSchema({"type": "string", **schema, "format": form})


Item = TypeVar("Item")
# Strict mode would reject lists from YAML.
Items = Annotated[tuple[Item, ...], Field(strict=False)]
Name = Annotated[
    str,
    Field(
        min_length=1,
        max_length=MAX_NAME_LENGTH,
        json_schema_extra={"pattern": f"^[^ {_CONTROLS}]([^{_CONTROLS}]*[^ {_CONTROLS}])?$"},
    ),
    AfterValidator(plain_name),
]
KubernetesName = Annotated[
    str,
    AfterValidator(kubernetes_name),
    described("name of a Kubernetes object", pattern=f"^{_DNS_NAME.pattern}$", maxLength=253),
]
EndpointAddress = Annotated[
    str,
    AfterValidator(endpoint_address),
    described("`IP:PORT`, for IPv6 `[IP]:PORT`, or `HOST:PORT`", pattern=r"^[^/]+:[0-9]+$"),
]
PrefixSource = Annotated[
    str,
    AfterValidator(_prefix_source),
    described(
        ", ".join(f"`{source}`" for source in PREFIX_SOURCES),
        anyOf=[
            {"enum": [source for source in PREFIX_SOURCES if source.isalpha()]},
            {"pattern": f"^{HEADER_SOURCE}{_HEADER_NAME.pattern}$"},
        ],
    ),
]
ServicePort = Annotated[
    str | int,
    PlainValidator(_service_port),
    described(
        "name, or number from 1 to 65535",
        type=["string", "integer"],
        minLength=1,
        minimum=1,
        maximum=65535,
    ),
]


class Spec(BaseModel):
    """A mapping in the document. It is frozen and rejects unknown keys; its keys are camelCase."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, validate_by_alias=True
    )
