"""Messages and parts for the tests of prompts."""

from __future__ import annotations

from typing import Any

import xxhash

LIMIT = 1000


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def system(content: Any) -> dict[str, Any]:
    return {"role": "system", "content": content}


def text(value: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": value}


IMAGE: dict[str, Any] = {
    "type": "image_url",
    "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="},
}


def digest(content: str) -> str:
    """Return the leaf of a medium in a prompt's text."""
    return str(xxhash.xxh3_64_hexdigest(content.encode())) * 256


def leaves(joined: str) -> list[str]:
    """Return the leaves of a text, none of which has several lines."""
    return joined.split("\n")[1:]


TOOL = {"type": "function", "function": {"name": "add", "parameters": {"max": 9, "strict": True}}}
