"""Bodies of vLLM's embedding, scoring and tokenizer APIs, as vLLM 0.32 writes them."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Sequence

import xxhash

from extproc.lab.stand_ins import tokens

DIMENSIONS = 64
"""Default length of an embedding."""

_READ_TOKENS = 1_024
"""Tokens that an embedding depends on; the limit bounds the time for long texts."""

Vector = list[float]


def embedding(text: bytes, dimensions: int = DIMENSIONS) -> Vector:
    """Return a unit vector that depends only on the tokens of a text."""
    vector = [0.0] * dimensions
    read = text[: _READ_TOKENS * tokens.TOKEN_BYTES]
    for start in range(0, len(read), tokens.TOKEN_BYTES):
        digest = xxhash.xxh32_intdigest(read[start : start + tokens.TOKEN_BYTES])
        vector[digest % dimensions] += 1.0
    norm = math.sqrt(sum(value * value for value in vector)) or 1.0
    return [value / norm for value in vector]


def similarity(one: bytes, other: bytes) -> float:
    """Return the cosine of two texts' embeddings, from 0 to 1."""
    products = zip(embedding(one), embedding(other), strict=True)
    return min(1.0, sum(a * b for a, b in products))


def embeddings(
    head: dict[str, object], vectors: Sequence[Vector], encoding: str, prompt_tokens: int
) -> bytes:
    """Return the body of /v1/embeddings; `encoding` is "float" or "base64" (32-bit floats)."""
    data = [
        {"index": index, "object": "embedding", "embedding": _encoded(vector, encoding)}
        for index, vector in enumerate(vectors)
    ]
    return _listed(head, data, prompt_tokens)


def pooled(head: dict[str, object], vectors: Sequence[Vector], prompt_tokens: int) -> bytes:
    """Return the body of /pooling."""
    data = [
        {"index": index, "object": "pooling", "data": vector}
        for index, vector in enumerate(vectors)
    ]
    return _listed(head, data, prompt_tokens)


def scores(head: dict[str, object], values: Sequence[float], prompt_tokens: int) -> bytes:
    """Return the body of /v1/score."""
    data = [
        {"index": index, "object": "score", "score": value} for index, value in enumerate(values)
    ]
    return _listed(head, data, prompt_tokens)


def classified(head: dict[str, object], texts: Sequence[bytes], prompt_tokens: int) -> bytes:
    """Return the body of /classify, with two classes."""
    probabilities = [xxhash.xxh32_intdigest(text) / 2**32 for text in texts]
    data = [
        {
            "index": index,
            "label": f"LABEL_{int(probability >= 0.5)}",
            "probs": [1 - probability, probability],
            "num_classes": 2,
        }
        for index, probability in enumerate(probabilities)
    ]
    return _listed(head, data, prompt_tokens)


def reranked(
    head: dict[str, object],
    documents: Sequence[str],
    values: Sequence[float],
    top_n: int,
    prompt_tokens: int,
) -> bytes:
    """Return the body of /v1/rerank: the best `top_n` documents (0 for all), best first."""
    results = [
        {"index": index, "document": {"text": text, "multi_modal": None}, "relevance_score": value}
        for index, (text, value) in enumerate(zip(documents, values, strict=True))
    ]
    results.sort(key=lambda result: -float(str(result["relevance_score"])))
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    shape = {"id": head["id"], "model": head["model"], "usage": usage}
    return json.dumps({**shape, "results": results[: top_n or None]}).encode()


def tokenized(prompt: bytes, max_model_len: int) -> bytes:
    """Return the body of /tokenize. The id of a token is the number that its four bytes encode."""
    ids = [number for (number,) in struct.iter_unpack(">I", prompt)]
    shape = {"count": len(ids), "max_model_len": max_model_len, "tokens": ids, "token_strs": None}
    return json.dumps(shape).encode()


def detokenized(prompt: bytes) -> bytes:
    """Return the body of /detokenize."""
    return json.dumps({"prompt": prompt.rstrip(b"\0").decode("utf-8", "replace")}).encode()


def _encoded(vector: Vector, encoding: str) -> Vector | str:
    if encoding == "float":
        return vector
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()


def _listed(head: dict[str, object], data: Sequence[object], prompt_tokens: int) -> bytes:
    usage = {
        "prompt_tokens": prompt_tokens,
        "total_tokens": prompt_tokens,
        "completion_tokens": 0,
        "prompt_tokens_details": None,
    }
    return json.dumps({**head, "data": data, "usage": usage}).encode()
