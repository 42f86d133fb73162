"""From a request to the key that places it on the ring."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from extproc.core.request.json_document import Document
from extproc.core.request.prompt import (
    first_user_message,
    first_user_message_is_whole,
    prompt_head,
    system_text,
    system_text_is_whole,
)
from extproc.core.request.session import SALT, session_of
from extproc.core.schema import PrefixHashSpec


def prefix_of(
    document: Document | None,
    headers: Mapping[str, str],
    spec: PrefixHashSpec,
    *,
    cut: bool = False,
) -> str:
    """The text that requests must share to be sent to the same endpoint; may be empty."""
    return read_prefix(document, headers, spec, cut=cut)[0]


def read_prefix(
    document: Document | None,
    headers: Mapping[str, str],
    spec: PrefixHashSpec,
    *,
    cut: bool = False,
) -> tuple[str, str]:
    """Return that text, and the source of the session's id if the text is one, else nothing.

    `document` is None where the body holds no prompt; its body may end anywhere if `cut`.
    A header's value and a session's id count whole: they are often alike at the beginning.
    """
    if spec.header is not None:
        value = headers.get(spec.header, "")
        return value, spec.prefix_source if value else ""
    if spec.session_keys:
        session = session_of(document, headers, spec)
        if session is not None:
            return session
    return "" if document is None else _in_prompt(document, spec, cut), ""


def _in_prompt(document: Document, spec: PrefixHashSpec, cut: bool) -> str:
    limit = spec.prefix_char_length
    match spec.prefix_source:
        case "PromptHead":
            return prompt_head(document, limit, cut=cut)
        case "SystemAndFirstUserMessage":
            return (system_text(document, cut=cut) + first_user_message(document, limit))[:limit]
        case _:
            return first_user_message(document, limit)[:limit]


def is_settled(
    prefix: str, document: Document | None, spec: PrefixHashSpec, source: str = ""
) -> bool:
    """Whether a cut body's prefix is the whole body's already, however the body goes on.

    `source` is where a session's id was read.
    """
    if spec.header is not None or document is None:
        return True
    if not _session_is_settled(document, spec, source):
        return False
    limit = spec.prefix_char_length
    match spec.prefix_source:
        case "PromptHead":
            return len(prefix) >= limit
        case "SystemAndFirstUserMessage" if not system_text_is_whole(document):
            return len(system_text(document, cut=True)) >= limit
        case _:
            return source != "" or len(prefix) >= limit or first_user_message_is_whole(document)


def _session_is_settled(document: Document, spec: PrefixHashSpec, source: str) -> bool:
    """Whether what a cut body goes on with can be no earlier source, nor more of this one."""
    last = next(reversed(document), None)
    for key in spec.session_keys:
        if str(key) == source:
            return key.field != last or key.header != ""
        if key.field and (key.field not in document or key.field == last):
            return False
    return True


def salt_is_settled(document: Document | None) -> bool:
    """Return whether a cut body shows all of its `cache_salt`, wherever others write it."""
    return document is None or (SALT in document and next(reversed(document)) != SALT)


def key_of(adapter: str, prefix: str, salt: str = "") -> int | None:
    """The place on the ring: XXH64 of adapter and prefix; None without a prefix.

    A salt is hashed with that as its seed, so requests under different salts have other places. A
    session's id needs none.
    """
    if not prefix:
        return None
    key: int = xxhash.xxh64_intdigest((adapter + prefix).encode())
    return xxhash.xxh64_intdigest(salt.encode(), key) if salt else key
