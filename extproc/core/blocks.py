"""A prompt as a chain of blocks, so that two prompts can be compared by how far they agree.

A block is so many bytes of the prompt's text, and its hash is seeded with the hash of the block
before it. Equal hashes therefore mean equal text from the beginning to the end of that block: what
vLLM does with blocks of tokens, done with text, because nobody here has the model's tokenizer.

The text is what a chat template makes of a prompt, in its order: tools, system prompt, messages.
Of a body that was cut only what was shown is in it; the tools that a client writes behind its
messages are then missing, and the chain is another than that of the whole body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import xxhash

from extproc.core.body import Document
from extproc.core.prompt import spoken

BLOCK_BYTES = 256
"""About 64 tokens of English."""

MOST_BLOCKS = 2048
"""Of one prompt, some 130,000 tokens: what comes after is not compared."""

MOST_BYTES = 4 * 2**20
"""Of one prompt, about a million tokens: who announces more is refused by the engine, or lies."""

LONG_SYSTEM_BLOCKS = 8
"""Some 500 tokens: a shorter system prompt is soon computed, wherever the request goes."""

BYTES_PER_TOKEN = 4.0
"""Of English and of code, with the tokenizers of today; until a model has told its own."""


class Prompt(NamedTuple):
    """What is known of a prompt."""

    blocks: Sequence[int]
    """The hash of each full block that was seen."""

    bytes: int
    """Of its text; where not all was shown, as many as there probably are."""

    system_blocks: int = 0
    """How many of the blocks are tools and system prompt."""

    whole: bool = True
    """Whether all of it was looked at, so that its size is no guess."""

    @property
    def shared(self) -> int | None:
        """The end of the tools and the system prompt, where they are long."""
        long = self.system_blocks >= LONG_SYSTEM_BLOCKS
        return self.blocks[self.system_blocks - 1] if long else None


def prompt_of(document: Document, owner: str, *, shown: float = 1.0) -> Prompt:
    """The prompt in a body, of which the share `shown` is there.

    Keys and values are of one model or adapter, so the chain begins with its name, the `owner`.
    """
    said = spoken(document, BLOCK_BYTES * MOST_BLOCKS)
    text = said.text.encode()
    system = min(len(said.text[: said.system].encode()), len(text)) // BLOCK_BYTES
    blocks = _chain(text[: BLOCK_BYTES * MOST_BLOCKS], xxhash.xxh64_intdigest(owner.encode()))
    size = (len(text) + said.beyond) / shown
    return Prompt(blocks, min(round(size), MOST_BYTES), min(system, len(blocks)), shown == 1.0)


def _chain(text: bytes, seed: int) -> list[int]:
    digest = xxhash.xxh64_intdigest
    blocks = []
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        seed = digest(text[start : start + BLOCK_BYTES], seed)
        blocks.append(seed)
    return blocks
