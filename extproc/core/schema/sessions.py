"""The headers and body fields that may hold a session's id: `sessionSources`."""

from __future__ import annotations

import re
from typing import Annotated, NamedTuple

from pydantic import AfterValidator, Field

from extproc.core.schema.values import HEADER_SOURCE, Items, described, is_header_name, unique

SESSION = "Session"
"""The `prefixSource` that reads sessions."""

BODY_SOURCE = "Body:"

DEFAULT_SESSION_SOURCES = (
    "Header:x-claude-code-session-id",  # Claude Code
    "Header:x-session-affinity",  # OpenCode, Crush
    "Header:session-id",  # Codex
    "Header:session_id",  # Codex before 0.131, pi
    "Header:x-session-id",  # OpenCode, Crush, many gateways
    "Header:x-opencode-session",  # Pi, Kilo Code and other clients of OpenCode's gateway
    "Body:prompt_cache_key",  # OpenAI's routing hint: Codex and other clients of Responses
    "Body:metadata.user_id",  # Claude Code behind a proxy that drops its header
)
"""Sources that identify one conversation come first, and those that may identify a user last.
`user` and `safety_identifier` are missing on purpose: one value often identifies a whole company,
and all of its requests would have one key."""

_FIELD = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)?")
_CHANGES_EACH_TURN = "previous_response_id"
_PROMPT_FIELDS = frozenset(("messages", "input", "prompt", "tools", "system", "instructions"))


class SessionKey(NamedTuple):
    """A source of session ids: a header, or a field of the body or of an object in the body."""

    header: str = ""
    field: str = ""
    member: str = ""

    def __str__(self) -> str:
        if self.header:
            return HEADER_SOURCE + self.header
        return BODY_SOURCE + (f"{self.field}.{self.member}" if self.member else self.field)


def session_key(source: str) -> SessionKey:
    """Parse a valid session source."""
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
        close = _corrected(text)
        raise ValueError(
            f"{text!r} is not 'Header:<name>', 'Body:<field>' or 'Body:<field>.<field>'"
            + (f", did you mean {close!r}?" if close else "")
        )
    top = field.partition(".")[0]
    if top in _PROMPT_FIELDS:
        raise ValueError(f"{text!r} is part of the prompt; use another 'prefixSource' to read it")
    if top == _CHANGES_EACH_TURN:
        raise ValueError(f"{text!r} changes with every turn, so it does not identify a session")
    return text


def _corrected(text: str) -> str:
    """Return the source that the user probably meant; empty if none is likely."""
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
    described(
        "`Header:<name>`, `Body:<field>`, `Body:<field>.<field>`", pattern="^(Header|Body):.+$"
    ),
]
SessionSources = Annotated[Items[SessionSource], Field(strict=False), AfterValidator(_sources)]
