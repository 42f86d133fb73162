"""The paths of APIs that generate no text: embeddings, scores, tokens and audio.

Their requests take no time of the simulated engine, and their length has no limit.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from itertools import count

from aiohttp import web

from extproc.lab.stand_ins import pooling_shapes, tokens
from extproc.lab.stand_ins.generation_request import BadRequest, Document, model_of, read_document
from extproc.lab.stand_ins.http_responses import error_response, json_document, json_response
from extproc.lab.stand_ins.openai_requests import chat_prompt, completion_prompts
from extproc.lab.stand_ins.request_error import RequestError
from extproc.lab.stand_ins.served_models import ServedModels

_Answer = Callable[[Document, str], bytes]
_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_ENCODINGS = ("float", "base64")
_MOST_DIMENSIONS = 4_096
_PAIRS = (("text_1", "text_2"), ("queries", "documents"), ("queries", "items"))
"""Pairs of field names that vLLM accepts for the two sides of a score."""


class PoolingRoutes:
    """The APIs of one replica that generate no text."""

    def __init__(self, models: ServedModels, max_model_len: int) -> None:
        self._models = models
        self._max_model_len = max_model_len
        self._numbers = count(1)

    def add_to(self, app: web.Application) -> None:
        """Add the routes."""
        answers: dict[str, _Answer] = {
            "/v1/embeddings": self._embeddings,
            "/pooling": self._pooling,
            "/classify": self._classify,
            "/score": self._score,
            "/v1/score": self._score,
            "/rerank": self._rerank,
            "/v1/rerank": self._rerank,
            "/v2/rerank": self._rerank,
            "/tokenize": self._tokenize,
            "/detokenize": self._detokenize,
        }
        for path, answer in answers.items():
            app.router.add_post(path, self._handler(answer))
        for path in ("/v1/audio/transcriptions", "/v1/audio/translations"):
            app.router.add_post(path, _transcribe)

    def _handler(self, answer: _Answer) -> _Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            try:
                document = read_document(await request.read())
                model = model_of(document) or self._models.name
                self._models.adapter_of(model)
                return json_response(answer(document, model))
            except RequestError as refusal:
                return error_response(refusal)

        return handle

    def _head(self, kind: str, model: str) -> dict[str, object]:
        created = int(time.time())
        name = f"{kind}-stand-in-{next(self._numbers)}"
        return {"id": name, "object": "list", "created": created, "model": model}

    def _embeddings(self, document: Document, model: str) -> bytes:
        encoding = document.get("encoding_format") or "float"
        dimensions = document.get("dimensions", pooling_shapes.DIMENSIONS)
        if encoding not in _ENCODINGS:
            raise BadRequest(f"encoding_format: must be one of {', '.join(_ENCODINGS)}")
        if not isinstance(dimensions, int) or not 1 <= dimensions <= _MOST_DIMENSIONS:
            raise BadRequest(f"dimensions: must be from 1 to {_MOST_DIMENSIONS}")
        texts = _inputs(document)
        vectors = [pooling_shapes.embedding(text, dimensions) for text in texts]
        head = self._head("embd", model)
        return pooling_shapes.embeddings(head, vectors, encoding, _count(texts))

    def _pooling(self, document: Document, model: str) -> bytes:
        texts = _inputs(document)
        vectors = [pooling_shapes.embedding(text) for text in texts]
        return pooling_shapes.pooled(self._head("pool", model), vectors, _count(texts))

    def _classify(self, document: Document, model: str) -> bytes:
        texts = _inputs(document)
        return pooling_shapes.classified(self._head("classify", model), texts, _count(texts))

    def _score(self, document: Document, model: str) -> bytes:
        firsts, seconds = next(
            (
                (_texts(document, one), _texts(document, other))
                for one, other in _PAIRS
                if one in document and other in document
            ),
            ([], []),
        )
        if not firsts or len(firsts) not in (1, len(seconds)):
            raise BadRequest("text_1 and text_2: must be one text and several, or equally many")
        firsts = firsts * len(seconds) if len(firsts) == 1 else firsts
        pairs = [(_tokens(a), _tokens(b)) for a, b in zip(firsts, seconds, strict=True)]
        values = [pooling_shapes.similarity(a, b) for a, b in pairs]
        read = _count([text for pair in pairs for text in pair])
        return pooling_shapes.scores(self._head("score", model), values, read)

    def _rerank(self, document: Document, model: str) -> bytes:
        queries, documents = _texts(document, "query"), _texts(document, "documents")
        top_n = document.get("top_n") or 0
        if len(queries) != 1 or not isinstance(top_n, int) or top_n < 0:
            raise BadRequest("query must be a text, top_n a natural number")
        query, texts = _tokens(queries[0]), [_tokens(text) for text in documents]
        values = [pooling_shapes.similarity(query, text) for text in texts]
        read = _count([query] * len(texts) + texts)
        return pooling_shapes.reranked(self._head("score", model), documents, values, top_n, read)

    def _tokenize(self, document: Document, _: str) -> bytes:
        prompt = document.get("prompt")
        if not isinstance(prompt, str) and "messages" not in document:
            raise BadRequest("prompt: must be a string")
        read = _tokens(prompt) if isinstance(prompt, str) else chat_prompt(document)
        return pooling_shapes.tokenized(read, self._max_model_len)

    def _detokenize(self, document: Document, _: str) -> bytes:
        ids = document.get("tokens")
        if not isinstance(ids, list) or not all(isinstance(one, int) for one in ids):
            raise BadRequest("tokens: must be a list of token ids")
        return pooling_shapes.detokenized(tokens.from_ids(ids))


async def _transcribe(request: web.Request) -> web.StreamResponse:
    """Answer a form with audio. The text depends on the bytes of the form, which is not parsed."""
    text = b"".join(tokens.answer(await request.read(), 8)).decode()
    return json_document({"text": text, "usage": {"type": "duration", "seconds": 1}})


def _inputs(document: Document) -> Sequence[bytes]:
    """Return the tokens of each input: one or several texts or lists of token ids, or a chat."""
    if "messages" in document:
        return [chat_prompt(document)]
    if document.get("input") == "":
        return [b""]  # vLLM accepts it, because a real tokenizer adds a start token
    return completion_prompts(document, "input")


def _texts(document: Document, field: str) -> list[str]:
    value = document.get(field)
    found = value if isinstance(value, list) else [value]
    texts = [one.get("text") if isinstance(one, dict) else one for one in found]
    if not all(isinstance(text, str) for text in texts):
        raise BadRequest(f"{field}: must be a text or a list of texts")
    return [str(text) for text in texts]


def _tokens(text: str) -> bytes:
    return tokens.tokenize([text])


def _count(texts: Sequence[bytes]) -> int:
    return sum(tokens.count(text) for text in texts)
