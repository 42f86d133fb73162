"""Texts of models documents, and the problems of a text."""

from __future__ import annotations

import pytest

from extproc.adapters.configuration.document import DocumentError, parse

LLAMA = "models:\n- name: llama\n  endpoints: [10.0.0.1:8000]\n"


def problems(text: str | bytes) -> list[str]:
    with pytest.raises(DocumentError) as refused:
        parse(text.encode() if isinstance(text, str) else text)
    return list(refused.value.problems)


def with_key(text: str) -> str:
    """Return the valid model with one more line."""
    return f"{LLAMA}  {text}\n"


def prefix_hash(text: str) -> str:
    return with_key(f"loadBalancing: {{prefixHash: {{{text}}}}}")


def with_endpoints(text: str) -> str:
    return f"models: [{{name: a, endpoints: [{text}]}}]"
