"""A stand-in tokenizer: every 4 bytes of a segment of text are a token.

Real tokenizers do not matter here; two properties of theirs do. Texts with the same
beginning have the same first tokens; and a conversation with the model's answer appended
has exactly the tokens of prompt and answer together, so the next turn finds both in the
cache. The second is why a prompt is cut segment by segment (each role marker and each
content on its own), and why answers consist of words of exactly 4 bytes.

Tokens are handled as the bytes they stand for, 4 each, in one string of bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from random import Random

import xxhash

TOKEN_BYTES = 4
BLOCK_TOKENS = 16
"""Tokens per block; vLLM's default on GPUs."""

_BLOCK_BYTES = TOKEN_BYTES * BLOCK_TOKENS
_WORDS = tuple(
    (f"{consonant}{vowel}{end} ").encode()
    for consonant, vowel, end in product("bdfgklmnprstvz", "aeiou", "lnrs,")
)


def tokenize(segments: Iterable[str]) -> bytes:
    """The tokens of a prompt; no token reaches over the end of a segment."""
    return b"".join(_padded(segment.encode("utf-8", "surrogatepass")) for segment in segments)


def chat_segments(messages: Iterable[tuple[str, str]]) -> list[str]:
    """Role and content of each message as a chat template renders them, up to the answer."""
    segments: list[str] = []
    for role, content in messages:
        segments += (f"<|{role}|>", content)
    segments.append("<|assistant|>")
    return segments


def from_ids(ids: Iterable[int]) -> bytes:
    """Tokens given by number (32 bits of it)."""
    return b"".join((number & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "big") for number in ids)


def count(tokens: bytes) -> int:
    """How many tokens these are."""
    return len(tokens) // TOKEN_BYTES


def block_ids(tokens: bytes, parent: int = 0) -> list[int]:
    """The chained ids of all full blocks: each a hash of its tokens, seeded with the one before.

    `parent` separates caches, as vLLM's `cache_salt` does.
    """
    digest = xxhash.xxh64_intdigest
    ids: list[int] = []
    for start in range(0, len(tokens) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        parent = digest(tokens[start : start + _BLOCK_BYTES], parent)
        ids.append(parent)
    return ids


def answer(prompt: bytes, length: int) -> list[bytes]:
    """The answer to a prompt: so many words of one token each, the same for the same prompt."""
    return Random(xxhash.xxh64_intdigest(prompt)).choices(_WORDS, k=length)


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % TOKEN_BYTES)
