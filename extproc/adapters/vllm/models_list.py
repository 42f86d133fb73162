"""Reads vLLM's `/v1/models`: the adapters of a server, and its context length.

The list has the base model's names and the adapters, which have a parent. The base model's entries
have `max_model_len`.
"""

from __future__ import annotations

from typing import NamedTuple

import jiter

from extproc.adapters.vllm.names import MOST_ADAPTERS, usable_adapter_names
from extproc.adapters.vllm.readings import Failure, Result

# Many small values take long to parse. An entry of vLLM has three brackets and some twenty
# commas.
_MOST_MARKS = {b"{": 5 * MOST_ADAPTERS, b"[": 5 * MOST_ADAPTERS, b",": 50 * MOST_ADAPTERS}


_LONGEST_CONTEXT = 2**40


class ModelsList(NamedTuple):
    """The contents of a server's list of models."""

    adapters: frozenset[str]

    max_model_len: int | None
    """Tokens of prompt and response together; None if the server does not report it."""


def read_models(text: bytes) -> ModelsList:
    """Read a list of models. Raises Failure for anything else."""
    if any(text.count(mark) > most for mark, most in _MOST_MARKS.items()):
        raise Failure(Result.GARBLED, "the list has too many entries")
    try:
        document = jiter.from_json(text, cache_mode="keys")
    except ValueError as problem:
        raise Failure(Result.GARBLED, f"the list is not JSON: {problem}") from None
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise Failure(Result.GARBLED, "the response is not a list of models")
    models = [entry for entry in entries if isinstance(entry, dict)]
    adapters = [entry for entry in models if entry.get("parent") is not None]
    lengths = [_length(entry) for entry in models if entry.get("parent") is None]
    return ModelsList(
        usable_adapter_names(entry.get("id") for entry in adapters),
        min((length for length in lengths if length), default=None),
    )


def _length(entry: dict[str, object]) -> int:
    """Return an entry's `max_model_len`; 0 if it has no usable one."""
    length = entry.get("max_model_len")
    # In Python a bool is an int.
    usable = type(length) is int and 0 < length < _LONGEST_CONTEXT
    return length if usable and isinstance(length, int) else 0
