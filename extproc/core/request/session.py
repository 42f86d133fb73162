"""The fields of a request, beside its prompt, that say which cache or which session it belongs to.

`cache_salt` separates prefix caches: vLLM hashes it into the first block. A session's id keeps the
requests of one conversation together; agents send it in a header or in a field of the body, and
`sessionSources` lists where to look, the first that has a value wins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from extproc.core.request.json_document import Document
from extproc.core.schema import PrefixHashSpec, SessionKey

SALT = "cache_salt"
"""The field of a body that separates caches."""

LONGEST_ID = 4096
"""Characters of a session's id in a body, or of a salt; a longer text is neither. vLLM takes salts
of up to 128 characters since September 2026."""


class Session(NamedTuple):
    """A session's id, and the source that it was read from."""

    value: str
    source: str


def salt_of(document: Document | None) -> str:
    """Return the salt of a request's cache; empty where there is none."""
    salt = None if document is None else document.get(SALT)
    return salt if isinstance(salt, str) and len(salt) <= LONGEST_ID else ""


def session_of(
    document: Document | None, headers: Mapping[str, str], spec: PrefixHashSpec
) -> Session | None:
    """Return the session's id by the first source that has one, if `spec` reads sessions.

    `document` is None where the body holds no prompt. A header's value counts whole.
    """
    for key in spec.session_keys:
        value = headers.get(key.header, "") if key.header else _in_body(document, key)
        if value:
            return Session(value, str(key))
    return None


def _in_body(document: Document | None, key: SessionKey) -> str:
    value = None if document is None else document.get(key.field)
    if key.member:
        value = value.get(key.member) if isinstance(value, dict) else None
    if isinstance(value, str):
        return value if len(value) <= LONGEST_ID else ""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() < 64:
        return str(value)
    return ""
