"""OpenAI's answers as bytes: whole ones, streamed chunks, errors, models, as vLLM writes them."""

from __future__ import annotations

import json
from collections.abc import Iterable

from extproc.lab.served_models import ServedModels

DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, object]:
    """The usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def error(status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """The body of a refusal."""
    shape = {"message": message, "type": kind, "param": param, "code": status}
    return json.dumps({"error": shape}).encode()


def models(served: ServedModels, max_model_len: int, created: int) -> bytes:
    """The body of GET /v1/models: the names of the base model, then the adapters."""
    root = served.name
    cards = [_card(name, root, None, max_model_len, created) for name in served.bases]
    cards += [_card(name, path, root, None, created) for name, path in served.adapters.items()]
    return json.dumps({"object": "list", "data": cards}).encode()


def _card(
    name: str, root: str, parent: str | None, max_model_len: int | None, created: int
) -> dict[str, object]:
    """Of an adapter vLLM says the path as `root`, the base model as `parent`, and no length."""
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "stand-in",
        "root": root,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [],
    }


class Answer:
    """One answer to /v1/chat/completions (`chat`) or /v1/completions.

    Chunks are put together from parts encoded once per request: a chunk per token
    of every stream is all that a stand-in does under load.
    """

    def __init__(self, chat: bool, model: str, number: int, created: int) -> None:
        self._chat = chat
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-stand-in-{number}",
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        chunk_head = {**self._head, "object": "chat.completion.chunk"} if chat else self._head
        self._chunk_head = b"data: " + json.dumps(chunk_head).encode()[:-1]
        before = b'"delta": {"content": "' if chat else b'"text": "'
        self._before = self._chunk_head + b', "choices": [{"index": 0, ' + before
        self._after = b'"}' if chat else b'"'

    def opening(self) -> bytes:
        """The chunk before the first token: a chat's role, nothing else."""
        if not self._chat:
            return b""
        choice = b'{"index": 0, "delta": {"role": "assistant", "content": ""}, '
        return self._chunk_head + b', "choices": [' + choice + b'"finish_reason": null}]}\n\n'

    def token_chunks(self, words: Iterable[bytes], last: bool) -> bytes:
        """One chunk for each word, which must need no escaping in JSON; `last`: the end."""
        middle = self._after + b', "finish_reason": '
        goes_on = middle + b"null}]}\n\n"
        chunks = [self._before + word + goes_on for word in words]
        if last and chunks:
            chunks[-1] = chunks[-1].removesuffix(goes_on) + middle + b'"length"}]}\n\n'
        return b"".join(chunks)

    def usage_chunk(self, tokens: dict[str, object]) -> bytes:
        """The chunk that only tells usage."""
        counts = json.dumps(tokens).encode()
        return self._chunk_head + b', "choices": [], "usage": ' + counts + b"}\n\n"

    def whole(self, words: Iterable[bytes], tokens: dict[str, object]) -> bytes:
        """The answer that is not streamed."""
        text = b"".join(words).decode()
        choice: dict[str, object] = {"index": 0, "finish_reason": "length"}
        if self._chat:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text
        return json.dumps({**self._head, "choices": [choice], "usage": tokens}).encode()
