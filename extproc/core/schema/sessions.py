"""Where a session's id stands in a request: `sessionSources`."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field, WithJsonSchema

from extproc.core.schema.values import HEADER_SOURCE, Items, is_header_name, unique

SESSION = "Session"
"""The `prefixSource` that reads sessions."""

BODY_SOURCE = "Body:"

DEFAULT_SESSION_SOURCES = (
    "Header:x-claude-code-session-id",  # Claude Code
    "Header:x-session-affinity",  # OpenCode, Crush
    "Header:session-id",  # Codex
    "Header:session_id",  # Codex before 0.131, pi
    "Header:x-session-id",  # OpenCode, Crush, many gateways
    "Header:x-opencode-session",  # Pi, Kilo Code and others that also speak to OpenCode's gateway
    "Body:prompt_cache_key",  # OpenAI's own hint for routing: Codex and clients of Responses
    "Body:metadata.user_id",  # Claude Code again, where a proxy drops its header
)
"""From what names one conversation to what may name a user. `user` and `safety_identifier` are not
among them: one value often stands for a whole company, and would be one key."""

_FIELD = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)?")
_CHANGING = "previous_response_id"
_PROMPT = frozenset(("messages", "input", "prompt", "tools", "system", "instructions"))


class SessionKey(NamedTuple):
    """A place where a session's id may stand: a header, or a field of the body and its member."""

    header: str = ""
    field: str = ""
    member: str = ""

    def __str__(self) -> str:
        if self.header:
            return HEADER_SOURCE + self.header
        return BODY_SOURCE + (f"{self.field}.{self.member}" if self.member else self.field)


def session_key(source: str) -> SessionKey:
    """Return the place that a valid session source names."""
    if source.startswith(HEADER_SOURCE):
        return SessionKey(header=source.removeprefix(HEADER_SOURCE))
    field, _, member = source.removeprefix(BODY_SOURCE).partition(".")
    return SessionKey(field=field, member=member)


def _session_source(text: str) -> str:
    """Check a source and return it with the header's name in lower case."""
    header, field = text.removeprefix(HEADER_SOURCE), text.removeprefix(BODY_SOURCE)
    if header != text and is_header_name(header):
        return HEADER_SOURCE + header.lower()
    if field == text or not _FIELD.fullmatch(field):
        close = _meant(text)
        raise ValueError(
            f"{text!r} is not 'Header:<name>', 'Body:<field>' or 'Body:<field>.<field>'"
            + (f", did you mean {close!r}?" if close else "")
        )
    top = field.partition(".")[0]
    if top in _PROMPT:
        raise ValueError(f"{text!r} is the prompt; other values of 'prefixSource' read it")
    if top == _CHANGING:
        raise ValueError(
            f"{text!r} changes with every turn, so it keeps no two requests of a session together"
        )
    return text


def _meant(text: str) -> str:
    """Return the source that was probably meant; empty if there is no telling."""
    before, colon, after = text.partition(":")
    kind, name = (before.strip().lower(), after.strip()) if colon else ("", text.strip())
    if kind == "header" or (not kind and "-" in name):
        return HEADER_SOURCE + name.lower() if is_header_name(name) else ""
    return BODY_SOURCE + name if kind in ("", "body") and _FIELD.fullmatch(name) else ""


def _sources(sources: tuple[str, ...]) -> tuple[str, ...]:
    if not sources:
        raise ValueError("is empty; list at least one source")
    return tuple(unique(list(sources)))


SessionSource = Annotated[
    str,
    AfterValidator(_session_source),
    WithJsonSchema({"format": "`Header:<name>`, `Body:<field>`, `Body:<field>.<field>`"}),
]
SessionSources = Annotated[Items[SessionSource], Field(strict=False), AfterValidator(_sources)]
