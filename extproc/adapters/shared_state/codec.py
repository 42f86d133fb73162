"""Batches and checkpoints as bytes, in MessagePack.

The types and limits here are the check of what others wrote: a value that breaks them is not read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal, TypeVar

import msgspec

from extproc.core.sharing.batch import Batch
from extproc.core.sharing.checkpoint import Checkpoint

MOST_BYTES = 16 * 2**20
"""The longest message that is read: several times the largest that a sidecar writes."""

_T = TypeVar("_T")
_VERSION = 1
_Number = Annotated[int, msgspec.Meta(ge=0)]
_Tokens = Annotated[float, msgspec.Meta(ge=-1, le=1e7)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e9)]


class UnreadableError(ValueError):
    """A message that no sidecar of this version wrote."""


_Sent = tuple[
    _Number,
    _Number,
    _Number,
    _Number,
    _Tokens,
    _Tokens,
    int | None,
    _Seconds,
    list[bytes],
    int | None,
]
_Held = tuple[_Number, _Number, _Number, _Tokens, _Tokens, _Seconds]


class _Batch(msgspec.Struct, array_like=True, gc=False):
    version: Literal[1]
    origin: Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
    names: list[str]
    sent: list[_Sent]
    moved: list[tuple[_Number, _Number]]
    began: list[_Number]
    ended: list[_Number]
    held: list[_Held] | None
    ejected: list[tuple[_Number, _Seconds]]
    tried: list[_Number]
    returned: list[_Number]
    token_sizes: dict[str, _Tokens]
    is_last: bool


class _Checkpoint(msgspec.Struct, array_like=True, gc=False):
    version: Literal[1]
    prompt_tokens: Annotated[float, msgspec.Meta(ge=0)]
    runs: list[tuple[_Seconds, bytes]]


_encode = msgspec.msgpack.Encoder().encode
_batch = msgspec.msgpack.Decoder(_Batch).decode
_checkpoint = msgspec.msgpack.Decoder(_Checkpoint).decode


def encode_batch(batch: Batch) -> bytes:
    """Return a batch as bytes."""
    return _encode((_VERSION, *batch))


def decode_batch(message: bytes) -> Batch:
    """Return the batch in a message. Raises UnreadableError."""
    one = _decoded(message, _batch)
    return Batch(
        *(one.origin, one.names, one.sent, one.moved, one.began, one.ended, one.held),
        *(one.ejected, one.tried, one.returned, one.token_sizes, one.is_last),
    )


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    """Return a checkpoint as bytes."""
    return _encode((_VERSION, *checkpoint))


def decode_checkpoint(message: bytes) -> Checkpoint:
    """Return the checkpoint in a message. Raises UnreadableError."""
    one = _decoded(message, _checkpoint)
    return Checkpoint(one.prompt_tokens, one.runs)


def _decoded(message: bytes, decode: Callable[[bytes], _T]) -> _T:
    if len(message) > MOST_BYTES:
        raise UnreadableError(f"{len(message)} bytes")
    try:
        return decode(message)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableError(str(error)) from None
