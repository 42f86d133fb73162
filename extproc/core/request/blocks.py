"""A prompt as chains of blocks, so that two prompts can be compared by their common beginning.

A block is a fixed number of bytes of the prompt's text. The hash of the block before it is the seed
of its own hash, so equal hashes mean equal text up to the end of that block. vLLM does the same
with blocks of tokens. The sidecar uses text, because it has no tokenizer.

The first block's seed is the name of the model or adapter, and the request's `cache_salt` if it has
one: as in vLLM, prompts with different salts share no block. A completion with several prompts has
a chain for each of them, because engines cache each one separately.

The text has the order of a chat template: tools, system prompt, messages. If the body was cut, only
the visible part counts. Tools that a client writes after its messages are then missing, and the
chain differs from the chain of the whole body.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import xxhash

from extproc.core.request.json_document import Document
from extproc.core.request.prompt import completion_prompts, is_conversation, prompt_text
from extproc.core.request.session import salt_of

BLOCK_BYTES = 256
"""Size of a block: about 64 tokens of English."""

MAX_BLOCKS = 2048
"""Compared blocks of a prompt: about 130,000 tokens. Later text is not compared."""

MAX_PROMPT_BYTES = 4 * 2**20
"""Upper limit of a prompt's estimated size: about a million tokens, more than engines accept."""

MAX_PROMPTS = 128
"""Compared prompts of one completion. The others only count towards its size."""

LONG_SYSTEM_BLOCKS = 8
"""Blocks of a long system prompt: about 500 tokens. A shorter one is cheap to compute anywhere."""

BYTES_PER_TOKEN = 4.0
"""Bytes per token of English text and of code, until the sidecar has measured the model's own."""

BLOCK_TOKENS = BLOCK_BYTES / BYTES_PER_TOKEN
"""Tokens of a block of such text."""


class Prompt(NamedTuple):
    """The blocks and the size of a prompt."""

    blocks: Sequence[int]
    """The hash of each full block in the visible part."""

    bytes: int
    """Size of the text. If the body was cut, this is an estimate."""

    system_blocks: int = 0
    """Number of blocks in tools and system prompt, at the beginning."""

    is_complete: bool = True
    """True if all of the prompt was visible, so that `bytes` is exact."""

    other_chains: Sequence[Sequence[int]] = ()
    """Hashes of the request's other prompts, one chain for each; `blocks` is the first prompt's."""

    previous_blocks: int = 0
    """Number of blocks in the prompt of the previous turn, at the beginning; 0 in a first turn."""

    answered_bytes: int = 0
    """Size of the previous turn with its response, at the beginning; 0 in a first turn."""

    turn: int | None = None
    """The hash of the whole prompt, which recognizes it in the next turn. None if it was cut or is
    too long, or is not a conversation."""

    previous_turn: int | None = None
    """The same hash of the previous turn's prompt; None in a first turn."""

    @property
    def block_count(self) -> int:
        """The number of blocks in all chains."""
        return len(self.blocks) + sum(map(len, self.other_chains))

    @property
    def most_compared_blocks(self) -> int:
        """The number of blocks in all chains, and one more for the end of each."""
        return self.block_count + len(self.other_chains) + 1

    @property
    def system_hash(self) -> int | None:
        """The hash of all of tools and system prompt; None if they are short."""
        is_long = self.system_blocks >= LONG_SYSTEM_BLOCKS
        return self.blocks[self.system_blocks - 1] if is_long else None


def prompt_of(document: Document, owner: str, *, share: float = 1.0, cut: bool = False) -> Prompt:
    """Return the prompt in a body of which a `share` is visible. `cut`: it may end anywhere.

    Keys and values in a KV cache belong to one model or adapter, so the chain starts with its name,
    the `owner`.
    """
    seed = _seed(owner, salt_of(document))
    prompts = completion_prompts(document)
    if prompts:
        return _from_several(prompts, seed, share)
    found = prompt_text(document, BLOCK_BYTES * MAX_BLOCKS, cut=cut)
    text = found.text.encode()
    system = _bytes(found.text, found.system_chars, len(text)) // BLOCK_BYTES
    blocks = _chain(text[: BLOCK_BYTES * MAX_BLOCKS], seed)
    size = (len(text) + found.omitted_chars) / share
    is_whole = is_conversation(document) and not (cut or found.omitted_chars)
    turn = _whole(text, len(text), blocks, seed) if is_whole else None
    previous, answered, previous_turn = 0, 0, None
    if found.previous_chars:
        previous = _bytes(found.text, found.previous_chars, len(text))
        answered = _bytes(found.text, found.answered_chars, len(text))
        previous_turn = _whole(text, previous, blocks, seed)
    return Prompt(
        *(blocks, min(round(size), MAX_PROMPT_BYTES), min(system, len(blocks)), share == 1.0, ()),
        *(min(previous // BLOCK_BYTES, len(blocks)), answered, turn, previous_turn),
    )


def _from_several(prompts: list[Any], seed: int, share: float) -> Prompt:
    """Return the prompts of one completion. The limit on blocks applies to all of them together."""
    chains: list[list[int]] = []
    left = BLOCK_BYTES * MAX_BLOCKS
    size = 0
    for prompt in prompts[:MAX_PROMPTS]:
        found = prompt_text({"prompt": prompt}, left)
        text = found.text.encode()
        chains.append(_chain(text[:left], seed))
        left = max(0, left - len(text))
        size += len(text) + found.omitted_chars
    size += prompt_text({"prompt": prompts[MAX_PROMPTS:]}, 0).omitted_chars
    others = [chain for chain in chains[1:] if chain]
    return Prompt(chains[0], min(round(size / share), MAX_PROMPT_BYTES), 0, share == 1.0, others)


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


def _bytes(text: str, chars: int, size: int) -> int:
    """Return the size of a text's first characters, if that of the whole text is `size` bytes."""
    if size == len(text):
        return min(chars, size)
    if chars < len(text) // 2:
        return len(text[:chars].encode())
    return size - len(text[chars:].encode())


def _whole(text: bytes, end: int, blocks: Sequence[int], seed: int) -> int:
    """Return the hash of a text up to its end. `blocks` are those of a text that begins with it."""
    full = min(end // BLOCK_BYTES, len(blocks))
    digest: int = xxhash.xxh64_intdigest(
        text[full * BLOCK_BYTES : end], blocks[full - 1] if full else seed
    )
    return digest


def agreement(run: Sequence[int], blocks: Sequence[int], start: int) -> int:
    """Return the number of equal blocks in a run and in a prompt from `start` on, at least one.

    The first ones must be equal. Blocks are chained, so after a different one all differ.
    """
    most = min(len(run), len(blocks) - start)
    if run[most - 1] == blocks[start + most - 1]:
        return most
    return bisect_left(range(most), True, key=lambda offset: run[offset] != blocks[start + offset])
