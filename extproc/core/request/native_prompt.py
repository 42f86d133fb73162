"""The prompts of SGLang's and vLLM's native APIs."""

from __future__ import annotations

from extproc.core.request.json_document import Document

_NATIVE_PROMPTS = ("text", "input_ids", "token_ids")


def with_prompt(document: Document) -> Document:
    """Return a document of SGLang's or vLLM's native API with its prompt under the key `prompt`.

    The order of the keys stays, because only the last value of a cut body may be cut.
    """
    name = next((key for key in _NATIVE_PROMPTS if document.get(key) is not None), None)
    if name is None or document.get("prompt") is not None:
        return document
    return {
        "prompt" if key == name else key: value
        for key, value in document.items()
        if key != "prompt"
    }
