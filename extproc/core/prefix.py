"""From a request to the key that places it on the ring."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

from extproc.core.body import Document
from extproc.core.prompt import (
    first_user_message,
    first_user_message_is_whole,
    prompt_head,
    system_text,
    system_text_is_whole,
)
from extproc.core.spec import PrefixHashSpec


def prefix_of(document: Document | None, headers: Mapping[str, str], spec: PrefixHashSpec) -> str:
    """The text that requests must share to be sent to the same endpoint; may be empty.

    `document` is None where the body holds no prompt. A header's value counts
    whole: session ids are often alike at the beginning.
    """
    if spec.header is not None:
        return headers.get(spec.header, "")
    if document is None:
        return ""
    limit = spec.prefix_char_length
    match spec.prefix_source:
        case "PromptHead":
            return prompt_head(document, limit)
        case "SystemAndFirstUserMessage":
            return (system_text(document) + first_user_message(document, limit))[:limit]
        case _:
            return first_user_message(document, limit)[:limit]


def is_settled(prefix: str, document: Document | None, spec: PrefixHashSpec) -> bool:
    """Whether a cut body's prefix is the whole body's already, however the body goes on."""
    limit = spec.prefix_char_length
    if spec.header is not None or document is None:
        return True
    match spec.prefix_source:
        case "PromptHead":
            return len(prefix) >= limit
        case "SystemAndFirstUserMessage" if not system_text_is_whole(document):
            return len(system_text(document)) >= limit
        case _:
            return len(prefix) >= limit or first_user_message_is_whole(document)


def key_of(adapter: str, prefix: str) -> int | None:
    """The place on the ring: XXH64 of adapter and prefix; None without a prefix."""
    if not prefix:
        return None
    return xxhash.xxh64_intdigest((adapter + prefix).encode())
