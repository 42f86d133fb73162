"""The texts and numbers below a JSON value, in order: what two prompts are compared by.

Engines put an image, a recording, a video or a file into a prompt as some number of tokens, and
fold a hash of its content into the cache's blocks. So each of them is one leaf here, a hash of its
data or URL: equal media give equal leaves, other media give others, and the length of the base64
text does not count. The forms are those of chat completions (`image_url`, `input_audio`,
`video_url`, `file`), Responses (`input_image`, `input_file`) and Anthropic's Messages (`source`).

A cut body may end within such data, whose hash is then another. A medium that may be cut is left
out, so that the leaves of a cut body are the first of the whole body's leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import xxhash

MEDIUM_BYTES = 4096
"""Weight of a medium in a prompt's text: 1,024 tokens. Models take 256 (Gemma 3) to some thousand
(Qwen2.5-VL, by the number of pixels) for an image."""

LONGEST_PLAIN = 1024
"""Characters of data or a URL that stand for themselves where weight does not matter."""

Open = tuple[object, ...]
"""The objects and lists that a cut body leaves open, the outermost first."""

_LONGEST_INTEGER = 1024
"""Bits of a number that could as well be a float."""

_MEDIA = frozenset(
    (
        *("image_url", "input_audio", "audio_url", "video_url", "file", "file_data", "file_url"),
        *("source", "image_embeds", "audio_embeds"),
    )
)
_CONTENT = ("url", "data", "file_data")
_SOURCES = frozenset(("base64", "url", None))
"""Values of `type` in Anthropic's `source` that hold a medium. The others hold text or an id."""

_SILENT = frozenset(("type", "cache_control"))
"""Members of a part that no engine shows to a model."""


def open_in(document: object) -> Open:
    """Return the objects and lists that are not closed if the document's body was cut."""
    path: list[object] = []
    value = document
    while isinstance(value, dict | list) and value:
        path.append(value)
        value = value[-1] if isinstance(value, list) else value[next(reversed(value))]
    return tuple(path)


def leaves(value: Any, weighed: bool, cut: Open) -> Iterator[str]:
    """Yield all texts and numbers below a JSON value, in order; the type of a part says nothing.

    `weighed`: a medium is as long as MEDIUM_BYTES. One generator walks all of it, because one for
    each list would cost more than its leaves.
    """
    open_values: list[Iterator[Any]] = [iter((value,))]
    while open_values:
        for member in open_values[-1]:
            if isinstance(member, str):
                yield member
            elif isinstance(member, dict):
                if cut or "type" in member:
                    open_values.append(iter(_members(member, weighed, cut)))
                else:
                    open_values.append(iter(member.values()))
                break
            elif isinstance(member, list):
                open_values.append(iter(member))
                break
            elif isinstance(member, int | float) and not isinstance(member, bool):
                yield number_text(member)
        else:
            open_values.pop()


def _members(part: dict[str, Any], weighed: bool, cut: Open) -> list[Any]:
    """Return what counts of an object that may be a part of a message, media as their leaves."""
    members: list[Any] = []
    unsure = None
    for value in cut:
        if value is part:
            unsure = next(reversed(part))
    for key, value in part.items():
        if key in _SILENT:
            continue
        if key not in _MEDIA:
            members.append(value)
        elif key != unsure:
            content = _content(value)
            if content is None:
                members.append(value)
            else:
                members.append(_weighed(content) if weighed else _named(content))
    return members


def _content(value: object) -> str | None:
    """Return the data or the URL of a medium; None for what is no medium."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.get("type") in _SOURCES:
        for key in _CONTENT:
            content = value.get(key)
            if isinstance(content, str):
                return content
    return None


def _weighed(content: str) -> str:
    digest: str = xxhash.xxh3_64_hexdigest(content.encode())
    return digest * (MEDIUM_BYTES // len(digest))


def _named(content: str) -> str:
    if len(content) <= LONGEST_PLAIN:
        return content
    return f"data:{xxhash.xxh3_64_hexdigest(content.encode())}"


def number_text(number: int | float) -> str:  # compiled, no whole number is a float
    """Return a number as text; long ones in hexadecimal, since decimal takes quadratic time."""
    if isinstance(number, int) and number.bit_length() > _LONGEST_INTEGER:
        return hex(number)
    return str(number)
