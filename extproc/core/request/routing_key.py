"""The routing key of a request: the text that requests share, hashed to a position on the ring."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from extproc.core.request.json_document import Document
from extproc.core.request.prompt import (
    first_user_message,
    first_user_message_is_complete,
    prompt_head,
    system_text,
    system_text_is_complete,
)
from extproc.core.request.session import CACHE_SALT, session_of
from extproc.core.schema import PrefixHashSpec


def read_prefix(
    document: Document | None,
    headers: Mapping[str, str],
    spec: PrefixHashSpec,
    *,
    cut: bool = False,
) -> tuple[str, str]:
    """Return the prefix, and the source of the session's id if that is the prefix, else "".

    Requests with the same prefix go to the same endpoint; it may be empty. `document` is None if
    the body holds no prompt. `cut`: the body may end anywhere. A header's value or a session's id
    is never shortened, because different ones often start alike.
    """
    if spec.header is not None:
        value = headers.get(spec.header, "")
        return value, spec.prefix_source if value else ""
    if spec.session_keys:
        session = session_of(document, headers, spec)
        if session is not None:
            return session
    return "" if document is None else _prompt_prefix(document, spec, cut), ""


def _prompt_prefix(document: Document, spec: PrefixHashSpec, cut: bool) -> str:
    limit = spec.prefix_char_length
    match spec.prefix_source:
        case "PromptHead":
            return prompt_head(document, limit, cut=cut)
        case "SystemAndFirstUserMessage":
            return (system_text(document, cut=cut) + first_user_message(document, limit))[:limit]
        case _:
            return first_user_message(document, limit)[:limit]


def prefix_is_final(
    prefix: str, document: Document | None, spec: PrefixHashSpec, source: str = ""
) -> bool:
    """Return True if the rest of a cut body cannot change its prefix.

    `source` is the source of the session's id.
    """
    if spec.header is not None or document is None:
        return True
    if not _session_is_final(document, spec, source):
        return False
    limit = spec.prefix_char_length
    match spec.prefix_source:
        case "PromptHead":
            return len(prefix) >= limit
        case "SystemAndFirstUserMessage" if not system_text_is_complete(document):
            return len(system_text(document, cut=True)) >= limit
        case _:
            return source != "" or len(prefix) >= limit or first_user_message_is_complete(document)


def _session_is_final(document: Document, spec: PrefixHashSpec, source: str) -> bool:
    """Return True if the rest of a cut body cannot change this source or contain an earlier one."""
    last = next(reversed(document), None)
    for key in spec.session_keys:
        if str(key) == source:
            return key.field != last or key.header != ""
        if key.field and (key.field not in document or key.field == last):
            return False
    return True


def salt_is_final(document: Document | None) -> bool:
    """Return True if a cut body contains all of its `cache_salt`. Without one, it may follow."""
    return document is None or (CACHE_SALT in document and next(reversed(document)) != CACHE_SALT)


def ring_key(adapter: str, prefix: str, salt: str = "") -> int | None:
    """Return the position on the ring: XXH64 of adapter and prefix; None without a prefix.

    Requests with different salts get different positions. With a session's id as prefix, pass no
    salt.
    """
    if not prefix:
        return None
    key: int = xxhash.xxh64_intdigest((adapter + prefix).encode())
    return xxhash.xxh64_intdigest(salt.encode(), key) if salt else key
