"""The values of the models document: what each kind of text or number must look like."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Annotated, TypeVar

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
"""Characters of a model's, alias's or adapter's name."""

HEADER_SOURCE = "Header:"

PREFIX_SOURCES = {
    "FirstUserMessage": "The beginning of the first user message, or of a completion's prompt: "
    "KubeAI's key. For chats that open differently.",
    "SystemAndFirstUserMessage": "The beginning of the system prompt followed by the first user "
    "message. For many system prompts; set `prefixCharLength` beyond their length, or one system "
    "prompt is one key.",
    "PromptHead": "The beginning of everything in the prompt, in the body's order: tools, roles, "
    "messages. For agents, completions and long shared documents.",
    "Session": "The session's id, whatever its length, from the first of `sessionSources` that has "
    "one; where none has, as `FirstUserMessage`. For agents.",
    "Header:<name>": "The whole value of this request header, whatever its length. For session "
    "affinity.",
}
"""What can make a request's key."""

_DNS_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


def unique(values: list[str]) -> list[str]:
    for position, value in enumerate(values):
        if value in values[:position]:
            raise ValueError(f"{value!r} is listed twice")
    return values


def is_header_name(text: str) -> bool:
    """Return whether a request header can have this name."""
    return _HEADER_NAME.fullmatch(text) is not None


def suggestion(given: object, options: Sequence[str]) -> str:
    """Return the end of a message that names the option most like what was given, or nothing."""
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
    """Checks the name of a Kubernetes object. Raises ValueError."""
    if len(text) > 253 or not _DNS_NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no Kubernetes name: lower case letters, digits, '-' and '.'")
    return text


def _service_port(port: object) -> str | int:
    if isinstance(port, str) and port:
        # A name has a letter in it: digits in quotes are what a template made of a number.
        if not port.isdecimal():
            return port
        port = int(port)
    if isinstance(port, int) and not isinstance(port, bool) and 0 < port < 65536:
        return port
    raise ValueError("give the port's name or its number, from 1 to 65535")


def _written(form: str) -> WithJsonSchema:
    """How such values are written, for the reference."""
    return WithJsonSchema({"format": form})


Item = TypeVar("Item")
# Strictness would refuse YAML's lists.
Items = Annotated[tuple[Item, ...], Field(strict=False)]
Name = Annotated[str, Field(min_length=1, max_length=MAX_NAME_LENGTH)]
KubernetesName = Annotated[
    str, AfterValidator(kubernetes_name), _written("name of a Kubernetes object")
]
EndpointAddress = Annotated[
    str,
    AfterValidator(endpoint_address),
    _written("`IP:PORT`, for IPv6 `[IP]:PORT`, or `HOST:PORT`"),
]
PrefixSource = Annotated[
    str,
    AfterValidator(_prefix_source),
    _written(", ".join(f"`{source}`" for source in PREFIX_SOURCES)),
]
ServicePort = Annotated[
    str | int, PlainValidator(_service_port), _written("name, or number from 1 to 65535")
]


class Spec(BaseModel):
    """A mapping of the document: frozen, strict about keys, camelCase in the document."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, alias_generator=to_camel, validate_by_alias=True
    )
