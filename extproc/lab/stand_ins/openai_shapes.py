"""Bodies of OpenAI's chat completions, completions, errors and model lists, as vLLM writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from extproc.lab.stand_ins.response_shape import TokenCounts, Words, text_of
from extproc.lab.stand_ins.served_models import ServedModels

DONE = b"data: [DONE]\n\n"


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, object]:
    """Return the usage object."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }


def error(status: int, kind: str, message: str, param: str | None = None) -> bytes:
    """Return the body of an error."""
    shape = {"message": message, "type": kind, "param": param, "code": status}
    return json.dumps({"error": shape}).encode()


def models(served: ServedModels, max_model_len: int, created: int) -> bytes:
    """Return the body of GET /v1/models: the names of the base model, then the adapters."""
    root = served.name
    cards = [_card(name, root, None, max_model_len, created) for name in served.bases]
    cards += [_card(name, path, root, None, created) for name, path in served.adapters.items()]
    return json.dumps({"object": "list", "data": cards}).encode()


def _card(
    name: str, root: str, parent: str | None, max_model_len: int | None, created: int
) -> dict[str, object]:
    """Return a model's entry. As in vLLM, an adapter has its path as `root` and no length."""
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


class CompletionResponse:
    """A response to /v1/chat/completions (`chat`) or /v1/completions.

    It encodes the constant parts of its chunks once: under load, a stand-in spends nearly all its
    time on chunks.
    """

    def __init__(
        self,
        chat: bool,
        model: str,
        number: int,
        created: int,
        include_usage: bool = False,
        limited: bool = True,
    ) -> None:
        """Encode the parts of chunks. `limited` if the request sets the limit of the output."""
        self._finish = "length" if limited or not chat else "stop"
        self._chat = chat
        self._include_usage = include_usage
        self._head = {
            "id": f"{'chatcmpl' if chat else 'cmpl'}-stand-in-{number}",
            "object": "chat.completion" if chat else "text_completion",
            "created": created,
            "model": model,
        }
        chunk_head = {**self._head, "object": "chat.completion.chunk"} if chat else self._head
        self._chunk_head = b"data: " + json.dumps(chunk_head).encode()[:-1]
        self._index = self._chunk_head + b', "choices": [{"index": '
        self._before = b', "delta": {"content": "' if chat else b', "text": "'
        self._after = b'"}' if chat else b'"'

    def preface(self) -> bytes:
        """Return nothing: vLLM sends its first chunk with the first token."""
        return b""

    def opening(self) -> bytes:
        """Return the chunk with the role of a chat's message, or nothing for a completion."""
        if not self._chat:
            return b""
        choice = b'{"index": 0, "delta": {"role": "assistant", "content": ""}, '
        return self._chunk_head + b', "choices": [' + choice + b'"finish_reason": null}]}\n\n'

    def token_chunks(self, words: Words, last: bool, index: int = 0) -> bytes:
        """Return one chunk for each word of a choice; `last` if the choice ends with them."""
        before = self._index + str(index).encode() + self._before
        middle = self._after + b', "finish_reason": '
        end = middle + b"null}]}\n\n"
        chunks = [before + word + end for word in words]
        if last and chunks:
            finish = self._finish.encode()
            chunks[-1] = chunks[-1].removesuffix(end) + middle + b'"%s"}]}\n\n' % finish
        return b"".join(chunks)

    def closing(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the usage chunk, if the request wants it, and the end of the stream."""
        if not self._include_usage:
            return DONE
        tokens = json.dumps(usage(counts.prompt, counts.completion, counts.cached)).encode()
        return self._chunk_head + b', "choices": [], "usage": ' + tokens + b"}\n\n" + DONE

    def whole(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """Return the body of a response without streaming: a choice for each text."""
        choices = [self._choice(index, text_of(words)) for index, words in enumerate(texts)]
        tokens = usage(counts.prompt, counts.completion, counts.cached)
        return json.dumps({**self._head, "choices": choices, "usage": tokens}).encode()

    def _choice(self, index: int, text: str) -> dict[str, object]:
        content: dict[str, object] = {"text": text}
        if self._chat:
            message = {"role": "assistant", "content": text}
            content = {"message": {**message, "refusal": None, "tool_calls": []}}
        end = {"logprobs": None, "finish_reason": self._finish, "stop_reason": None}
        return {"index": index, **content, **end}
