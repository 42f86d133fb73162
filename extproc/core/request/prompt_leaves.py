"""The leaves of a prompt in JSON: its strings and numbers, in order. Prompts are compared by them.

Engines turn an image, a recording, a video or a file into a number of tokens. They mix a hash of
its content into the hashes of cache blocks. So each medium is one leaf here: a hash of its data or
URL. The length of its base64 text does not count. These forms are known: chat completions
(`image_url`, `input_audio`, `video_url`, `file`), Responses (`input_image`, `input_file`) and
Anthropic's Messages (`source`). The member's name and the form of its value decide, because `type`
may come later in a cut body, and vLLM does without it. The schemas of tools and the arguments of
their calls hold no media, even if their members have such names.

A cut body may end inside such data, which would give another hash. So a medium that may be cut is
left out, and the leaves of a cut body are always the first leaves of the whole body. Only the last
leaf may be shorter.
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

OpenValues = frozenset[int]
"""The ids of the objects and lists that a cut body leaves open."""

NONE_OPEN: OpenValues = frozenset()
"""The open values of a complete body."""

_MAX_DECIMAL_BITS = 1024
"""Size of the largest number that is written in decimal; every float fits."""

_TEXT_MEDIA = frozenset(
    ("image_url", "audio_url", "video_url", "file_data", "file_url", "image_embeds", "audio_embeds")
)
"""Members that hold a medium as a string, or as an object with one of `_CONTENT`."""

_OBJECT_MEDIA = frozenset(("input_audio", "file", "source"))
"""Members that hold a medium only as an object. A string there is a path, a URL or a title."""

_MEDIA = _TEXT_MEDIA | _OBJECT_MEDIA
_CONTENT = ("url", "data", "file_data")
_SOURCES = frozenset(("base64", "url"))
"""Values of `type` in Anthropic's `source` that hold a medium. The others hold text or an id."""

_IGNORED = frozenset(("type", "cache_control"))
"""Members of any object that engines do not put into the prompt."""

_ARGUMENTS = frozenset(("input", "arguments"))
"""Members that hold the arguments of a tool call."""

_SPECIAL = _MEDIA | _IGNORED | _ARGUMENTS


class Plain:
    """A JSON value without media: the tools of a request, or the arguments of a tool call."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def open_values(document: object) -> OpenValues:
    """Return the objects and lists that are not closed if the document's body was cut."""
    path: list[int] = []
    value = document
    while isinstance(value, dict | list) and value:
        path.append(id(value))
        value = value[-1] if isinstance(value, list) else value[next(reversed(value))]
    return frozenset(path)


def leaves_of(value: Any, fixed_media: bool, still_open: OpenValues) -> Iterator[str]:
    """Yield all strings and numbers below a JSON value, in order, without the types of parts.

    `fixed_media`: each medium is a leaf of MEDIUM_BYTES. One generator walks the whole tree,
    because one generator per list would be slower.
    """
    iterators: list[Iterator[Any]] = [iter((value,))]
    plain = 0  # the number of iterators down to the outermost plain value; 0 outside of one
    while iterators:
        for member in iterators[-1]:
            if isinstance(member, str):
                yield member
            elif isinstance(member, dict):
                if "type" not in member and _SPECIAL.isdisjoint(member):
                    iterators.append(iter(member.values()))
                elif plain:
                    iterators.append(iter(_plain_members(member)))
                else:
                    iterators.append(iter(_members(member, fixed_media, still_open)))
                break
            elif isinstance(member, list):
                iterators.append(iter(member))
                break
            elif isinstance(member, int | float) and not isinstance(member, bool):
                yield number_text(member)
            elif isinstance(member, Plain):
                iterators.append(iter((member.value,)))
                plain = plain or len(iterators)
                break
        else:
            iterators.pop()
            if len(iterators) < plain:
                plain = 0


def _plain_members(value: dict[str, Any]) -> list[Any]:
    """Return the relevant members of an object that holds no media."""
    return [member for key, member in value.items() if key not in _IGNORED]


def _members(part: dict[str, Any], fixed_media: bool, still_open: OpenValues) -> list[Any]:
    """Return the relevant members of an object that may be a part of a message.

    Media are replaced by their leaves.
    """
    members: list[Any] = []
    maybe_cut = next(reversed(part)) if still_open and id(part) in still_open else None
    for key, value in part.items():
        if key not in _SPECIAL:
            members.append(value)
        elif key in _ARGUMENTS:
            members.append(Plain(value) if isinstance(value, dict | list) else value)
        elif key in _MEDIA and key != maybe_cut:
            content = _medium_content(key, value)
            if content is None:
                members.append(value)
            else:
                members.append(_fixed_leaf(content) if fixed_media else _short_leaf(content))
    return members


def _medium_content(key: str, value: object) -> str | None:
    """Return the data or the URL of a medium; None if the member is not a medium."""
    if isinstance(value, str):
        return value if key in _TEXT_MEDIA else None
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
