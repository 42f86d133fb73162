"""A stand-in tokenizer: every 4 bytes of a segment of text are one token.

It keeps two properties of real tokenizers. First, texts with the same beginning have the same first
tokens. Second, a conversation that ends with the model's output has exactly the tokens of the
prompt and the output, so the next turn finds both in the cache. For the second property, a prompt
is split by segments (each role marker and each content), and outputs consist of 4-byte words.

Tokens are represented by their bytes, 4 for each token, in one `bytes` object.
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
    """Return the tokens of a prompt; no token crosses the end of a segment."""
    return b"".join(_padded(segment.encode("utf-8", "surrogatepass")) for segment in segments)


def chat_segments(messages: Iterable[tuple[str, str]]) -> list[str]:
    """Return the role and the content of each message, as a chat template renders them."""
    segments: list[str] = []
    for role, content in messages:
        segments += (f"<|{role}|>", content)
    segments.append("<|assistant|>")
    return segments


def from_ids(ids: Iterable[int]) -> bytes:
    """Return the tokens with these ids, of which the lowest 32 bits count."""
    return b"".join((number & 0xFFFFFFFF).to_bytes(TOKEN_BYTES, "big") for number in ids)


def count(tokens: bytes) -> int:
    """Return the number of tokens."""
    return len(tokens) // TOKEN_BYTES


def block_ids(tokens: bytes, parent: int = 0) -> list[int]:
    """Return the chained ids of all full blocks: hashes of the tokens, seeded with the previous id.

    `parent` seeds the first id and separates caches, as vLLM's `cache_salt` does.
    """
    digest = xxhash.xxh64_intdigest
    ids: list[int] = []
    for start in range(0, len(tokens) - _BLOCK_BYTES + 1, _BLOCK_BYTES):
        parent = digest(tokens[start : start + _BLOCK_BYTES], parent)
        ids.append(parent)
    return ids


def answer(prompt: bytes, length: int) -> list[bytes]:
    """Return the output for a prompt: words of one token each, equal for equal prompts."""
    return Random(xxhash.xxh64_intdigest(prompt)).choices(_WORDS, k=length)


def _padded(text: bytes) -> bytes:
    return text + bytes(-len(text) % TOKEN_BYTES)
