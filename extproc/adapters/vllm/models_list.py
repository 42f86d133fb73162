"""What vLLM's `/v1/models` says: the adapters that a server can serve at this moment.

They stand beside the base model's names, from which a parent tells them.
"""

from __future__ import annotations

import jiter

from extproc.adapters.vllm.names import MOST_ADAPTERS, adapters_named
from extproc.adapters.vllm.readings import Failure, Result

# Reading takes long for many small values, and not for long ones. An entry of vLLM has three
# brackets and some twenty commas.
_MOST_MARKS = {b"{": 5 * MOST_ADAPTERS, b"[": 5 * MOST_ADAPTERS, b",": 50 * MOST_ADAPTERS}


def read_adapters(text: bytes) -> frozenset[str]:
    """The adapters in a list of models. Raises Failure where it is none."""
    if any(text.count(mark) > most for mark, most in _MOST_MARKS.items()):
        raise Failure(Result.GARBLED, "more entries than are read")
    try:
        document = jiter.from_json(text, cache_mode="keys")
    except ValueError as problem:
        raise Failure(Result.GARBLED, f"no JSON: {problem}") from None
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise Failure(Result.GARBLED, "no list of models")
    models = (entry for entry in entries if isinstance(entry, dict))
    return adapters_named(m.get("id") for m in models if m.get("parent") is not None)
