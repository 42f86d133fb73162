"""The paths this service answers for, and what their bodies hold."""

from __future__ import annotations

from enum import Enum, auto


class Api(Enum):
    """What can be read from the body of a request to a path."""

    GENERATE = auto()
    """JSON with a model and a prompt whose prefix a KV cache may hold."""

    MODEL_ONLY = auto()
    """JSON with a model; one short computation, no prefix worth following."""

    FORM = auto()
    """multipart/form-data with a field `model`."""


MODELS_PATH = "/v1/models"

INFERENCE_PATHS: dict[str, Api] = {
    "/v1/chat/completions": Api.GENERATE,
    "/v1/completions": Api.GENERATE,
    "/v1/responses": Api.GENERATE,
    "/v1/messages": Api.GENERATE,
    "/v1/embeddings": Api.MODEL_ONLY,
    "/v1/rerank": Api.MODEL_ONLY,
    "/rerank": Api.MODEL_ONLY,
    "/v1/score": Api.MODEL_ONLY,
    "/score": Api.MODEL_ONLY,
    "/pooling": Api.MODEL_ONLY,
    "/classify": Api.MODEL_ONLY,
    "/tokenize": Api.MODEL_ONLY,
    "/detokenize": Api.MODEL_ONLY,
    "/v1/audio/transcriptions": Api.FORM,
    "/v1/audio/translations": Api.FORM,
}


def without_query(path: str) -> str:
    """The path of a `:path` pseudo-header, which carries the query string too."""
    return path.partition("?")[0]
