"""Bodies of OpenAI's chat completions, completions, errors and model lists, as vLLM writes them."""

from __future__ import annotations

import json
from collections.abc import Sequence

from extproc.lab.stand_ins.response_shape import TokenCounts, Words, text_of
from extproc.lab.stand_ins.served_models import ServedModels

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
    """A model's entry. An adapter's has its path as `root` and no length, as in vLLM."""
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
    """One answer to /v1/chat/completions (`chat`) or /v1/completions.

    Chunks are put together from parts encoded once per request: a chunk per token
    of every stream is all that a stand-in does under load.
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
        """`limited`: a chat ends at the limit that its request sets; else the model stops."""
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
        """Nothing: vLLM sends its first chunk with the first token."""
        return b""

    def opening(self) -> bytes:
        """The chunk before the first token: a chat's role, nothing else."""
        if not self._chat:
            return b""
        choice = b'{"index": 0, "delta": {"role": "assistant", "content": ""}, '
        return self._chunk_head + b', "choices": [' + choice + b'"finish_reason": null}]}\n\n'

    def token_chunks(self, words: Words, last: bool, index: int = 0) -> bytes:
        """One chunk for each word of a choice; `last`: the end."""
        before = self._index + str(index).encode() + self._before
        middle = self._after + b', "finish_reason": '
        goes_on = middle + b"null}]}\n\n"
        chunks = [before + word + goes_on for word in words]
        if last and chunks:
            finish = self._finish.encode()
            chunks[-1] = chunks[-1].removesuffix(goes_on) + middle + b'"%s"}]}\n\n' % finish
        return b"".join(chunks)

    def closing(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """The chunk with usage, where the request asks for it, and the end of the stream."""
        if not self._include_usage:
            return DONE
        tokens = json.dumps(usage(counts.prompt, counts.completion, counts.cached)).encode()
        return self._chunk_head + b', "choices": [], "usage": ' + tokens + b"}\n\n" + DONE

    def whole(self, texts: Sequence[Words], counts: TokenCounts) -> bytes:
        """The answer that is not streamed: a choice for each text."""
        choices = [self._choice(index, text_of(words)) for index, words in enumerate(texts)]
        tokens = usage(counts.prompt, counts.completion, counts.cached)
        return json.dumps({**self._head, "choices": choices, "usage": tokens}).encode()

    def _choice(self, index: int, text: str) -> dict[str, object]:
        said: dict[str, object] = {"text": text}
        if self._chat:
            message = {"role": "assistant", "content": text}
            said = {"message": {**message, "refusal": None, "tool_calls": []}}
        end = {"logprobs": None, "finish_reason": self._finish, "stop_reason": None}
        return {"index": index, **said, **end}
