"""The leaves of a prompt in JSON: its strings and numbers, in order. Prompts are compared by them.

Engines turn an image, a recording, a video or a file into a number of tokens. They mix a hash of
its content into the hashes of cache blocks. So each medium is one leaf here: a hash of its data or
URL. The length of its base64 text does not count. These forms are known: chat completions
(`image_url`, `input_audio`, `video_url`, `file`), Responses (`input_image`, `input_file`) and
Anthropic's Messages (`source`).

A cut body may end inside such data, which would give another hash. So a medium that may be cut is
left out, and the leaves of a cut body are always the first leaves of the whole body.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import xxhash

MEDIUM_BYTES = 4096
"""Length of a medium in a prompt's text: 1,024 tokens. Models use between 256 tokens (Gemma 3) and
some thousand (Qwen2.5-VL, depending on the number of pixels) for an image."""

MAX_VERBATIM_CHARS = 1024
"""Longer data or URLs are replaced by a hash, even if media need not have a fixed length."""

OpenValues = tuple[object, ...]
"""The objects and lists that a cut body leaves open, the outermost first."""

_MAX_DECIMAL_BITS = 1024
"""Size of the largest number that is written in decimal; every float fits."""

_MEDIA = frozenset(
    (
        *("image_url", "input_audio", "audio_url", "video_url", "file", "file_data", "file_url"),
        *("source", "image_embeds", "audio_embeds"),
    )
)
_CONTENT = ("url", "data", "file_data")
_SOURCES = frozenset(("base64", "url"))
"""Values of `type` in Anthropic's `source` that hold a medium. The others hold text or an id."""

_IGNORED = frozenset(("type", "cache_control"))
"""Members of a message part that engines do not put into the prompt."""


def open_values(document: object) -> OpenValues:
    """Return the objects and lists that are not closed if the document's body was cut."""
    path: list[object] = []
    value = document
    while isinstance(value, dict | list) and value:
        path.append(value)
        value = value[-1] if isinstance(value, list) else value[next(reversed(value))]
    return tuple(path)


def leaves_of(value: Any, fixed_media: bool, cut: OpenValues) -> Iterator[str]:
    """Yield all strings and numbers below a JSON value, in order, without the types of parts.

    `fixed_media`: each medium is a leaf of MEDIUM_BYTES. `cut`: the values that are still open. One
    generator walks the whole tree, because one generator per list would be slower.
    """
    iterators: list[Iterator[Any]] = [iter((value,))]
    while iterators:
        for member in iterators[-1]:
            if isinstance(member, str):
                yield member
            elif isinstance(member, dict):
                if cut or "type" in member:
                    iterators.append(iter(_part_members(member, fixed_media, cut)))
                else:
                    iterators.append(iter(member.values()))
                break
            elif isinstance(member, list):
                iterators.append(iter(member))
                break
            elif isinstance(member, int | float) and not isinstance(member, bool):
                yield number_text(member)
        else:
            iterators.pop()


def _part_members(part: dict[str, Any], fixed_media: bool, cut: OpenValues) -> list[Any]:
    """Return the relevant members of an object that may be a part of a message.

    Media are replaced by their leaves.
    """
    members: list[Any] = []
    maybe_cut = None
    for value in cut:
        if value is part:
            maybe_cut = next(reversed(part))
    for key, value in part.items():
        if key in _IGNORED:
            continue
        if key not in _MEDIA:
            members.append(value)
        elif key != maybe_cut:
            content = _medium_content(value)
            if content is None:
                members.append(value)
            else:
                members.append(_fixed_leaf(content) if fixed_media else _short_leaf(content))
    return members


def _medium_content(value: object) -> str | None:
    """Return the data or the URL of a medium; None if the value is not a medium."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and _may_hold_medium(value.get("type")):
        for key in _CONTENT:
            content = value.get(key)
            if isinstance(content, str):
                return content
    return None


def _may_hold_medium(kind: object) -> bool:
    """Return True for a `type` of any JSON type that an object with a medium can have, or none."""
    return kind is None or (isinstance(kind, str) and kind in _SOURCES)


def _fixed_leaf(content: str) -> str:
    digest: str = xxhash.xxh3_64_hexdigest(content.encode())
    return digest * (MEDIUM_BYTES // len(digest))


def _short_leaf(content: str) -> str:
    if len(content) <= MAX_VERBATIM_CHARS:
        return content
    return f"data:{xxhash.xxh3_64_hexdigest(content.encode())}"


def number_text(number: int | float) -> str:  # if compiled, an int is not a float
    """Return a number as text. Long ones are in hexadecimal: decimal takes quadratic time."""
    if isinstance(number, int) and number.bit_length() > _MAX_DECIMAL_BITS:
        return hex(number)
    return str(number)
