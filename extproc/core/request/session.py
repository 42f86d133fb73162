"""The fields of a request that name its cache or its session.

`cache_salt` separates prefix caches: vLLM hashes it into the first block. A session's id keeps the
requests of one conversation together. Agents send it in a header or in a field of the body.
`sessionSources` lists these places; the first one with a value wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from extproc.core.request.json_document import Document
from extproc.core.schema import PrefixHashSpec, SessionKey

CACHE_SALT = "cache_salt"
"""The field of a body that separates caches."""

MAX_ID_LENGTH = 4096
"""Characters of a session's id in a body, or of a salt. Longer texts are ignored. vLLM accepts
salts of up to 128 characters since September 2026."""


class Session(NamedTuple):
    """A session's id and the source it was read from."""

    value: str
    source: str


def salt_of(document: Document | None) -> str:
    """Return the request's cache salt; empty if there is none."""
    salt = None if document is None else document.get(CACHE_SALT)
    return salt if isinstance(salt, str) and len(salt) <= MAX_ID_LENGTH else ""


def session_of(
    document: Document | None, headers: Mapping[str, str], spec: PrefixHashSpec
) -> Session | None:
    """Return the session's id from the first source that has one; None if no source has one.

    `document` is None if the body holds no prompt. A header's value has no limit.
    """
    for key in spec.session_keys:
        value = headers.get(key.header, "") if key.header else _body_value(document, key)
        if value:
            return Session(value, str(key))
    return None


def _body_value(document: Document | None, key: SessionKey) -> str:
    value = None if document is None else document.get(key.field)
    if key.member:
        value = value.get(key.member) if isinstance(value, dict) else None
    if isinstance(value, str):
        return value if len(value) <= MAX_ID_LENGTH else ""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64:
        return str(value)
    return ""
