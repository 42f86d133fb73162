"""A prompt as a chain of blocks, so that two prompts can be compared by how far they agree.

A block is so many bytes of the prompt's text, and its hash is seeded with the hash of the block
before it. Equal hashes therefore mean equal text from the beginning to the end of that block: what
vLLM does with blocks of tokens, done with text, because nobody here has the model's tokenizer.

The first block's seed is the model's or adapter's name, and the request's `cache_salt` where it has
one: as in vLLM, prompts under different salts share no block. A completion with several prompts has
a chain for each, because engines cache each by itself.

The text is what a chat template makes of a prompt, in its order: tools, system prompt, messages.
Of a body that was cut only what was shown is in it; the tools that a client writes behind its
messages are then missing, and the chain is another than that of the whole body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import xxhash

from extproc.core.request.json_document import Document
from extproc.core.request.prompt import prompts_of, spoken
from extproc.core.request.session import salt_of

BLOCK_BYTES = 256
"""About 64 tokens of English."""

MOST_BLOCKS = 2048
"""Of one prompt, some 130,000 tokens: what comes after is not compared."""

MOST_BYTES = 4 * 2**20
"""Of one prompt, about a million tokens: who announces more is refused by the engine, or lies."""

MOST_PROMPTS = 128
"""Prompts of one completion that are compared; the others are only counted."""

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

    more: Sequence[Sequence[int]] = ()
    """The chains of further prompts in the same request; `blocks` is the first prompt's."""

    @property
    def all_blocks(self) -> int:
        """The number of blocks in all chains."""
        return len(self.blocks) + sum(map(len, self.more))

    @property
    def shared(self) -> int | None:
        """The end of the tools and the system prompt, where they are long."""
        long = self.system_blocks >= LONG_SYSTEM_BLOCKS
        return self.blocks[self.system_blocks - 1] if long else None


def prompt_of(document: Document, owner: str, *, shown: float = 1.0, cut: bool = False) -> Prompt:
    """The prompt in a body, of which the share `shown` is there. `cut`: it may end anywhere.

    Keys and values are of one model or adapter, so the chain begins with its name, the `owner`.
    """
    seed = _seed(owner, salt_of(document))
    several = prompts_of(document)
    if several:
        return _several(several, seed, shown)
    said = spoken(document, BLOCK_BYTES * MOST_BLOCKS, cut=cut)
    text = said.text.encode()
    system = min(len(said.text[: said.system].encode()), len(text)) // BLOCK_BYTES
    blocks = _chain(text[: BLOCK_BYTES * MOST_BLOCKS], seed)
    size = (len(text) + said.beyond) / shown
    return Prompt(blocks, min(round(size), MOST_BYTES), min(system, len(blocks)), shown == 1.0)


def _several(prompts: list[Any], seed: int, shown: float) -> Prompt:
    """The prompts of one completion: all together have as many blocks as one may have."""
    chains: list[list[int]] = []
    left = BLOCK_BYTES * MOST_BLOCKS
    size = 0
    for prompt in prompts[:MOST_PROMPTS]:
        said = spoken({"prompt": prompt}, left)
        text = said.text.encode()
        chains.append(_chain(text[:left], seed))
        left = max(0, left - len(text))
        size += len(text) + said.beyond
    size += spoken({"prompt": prompts[MOST_PROMPTS:]}, 0).beyond
    more = [chain for chain in chains[1:] if chain]
    return Prompt(chains[0], min(round(size / shown), MOST_BYTES), 0, shown == 1.0, more)


def _seed(owner: str, salt: str) -> int:
    seed: int = xxhash.xxh64_intdigest(owner.encode())
    return xxhash.xxh64_intdigest(salt.encode(), seed) if salt else seed


def _chain(text: bytes, seed: int) -> list[int]:
    digest = xxhash.xxh64_intdigest
    blocks = []
    for start in range(0, len(text) - BLOCK_BYTES + 1, BLOCK_BYTES):
        seed = digest(text[start : start + BLOCK_BYTES], seed)
        blocks.append(seed)
    return blocks
