"""Requests with JSON of any shape: fields of the known APIs with values of any type."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.conversation.request import Request
from extproc.core.request.json_document import parse_document
from extproc.core.request.paths import Api
from extproc.core.request.prompt import prompt_head
from extproc.core.request.refusals import Refusal
from tests.core.bodies import any_documents, cuts, documents, written
from tests.core.builders import model_spec, router, thorough

ROUTERS = [
    router(model_spec(strategy="PrefixCache")),
    router(model_spec(prefixSource="FirstUserMessage")),
    router(model_spec(prefixSource="SystemAndFirstUserMessage")),
    router(model_spec(prefixSource="PromptHead")),
    router(
        model_spec(prefixSource="Session", sessionSources=["Body:metadata.user_id", "Body:user"])
    ),
]
NULLABLE_SOURCE: dict[str, Any] = {
    "properties": {"type": {"type": "string"}, "source": {"type": ["string", "null"]}}
}


@thorough
@given(
    any_documents(st.floats()),
    st.data(),
    st.sampled_from([Api.GENERATE, Api.NATIVE]),
    st.booleans(),
)
def test_no_json_document_raises_anything_but_a_refusal(
    document: dict[str, Any], data: st.DataObject, api: Api, stores: bool
) -> None:
    body = written({"model": "llama", **document})
    size = data.draw(st.integers(1, len(body)))
    for head, complete in ((body, True), (body, False), (body[:size], False)):
        for serving in ROUTERS:
            request = Request(serving, api, creates_response=stores)
            try:
                request.resolve_early(head)
                serving.decide(request.resolve(head, complete=complete)).lease.release()
            except Refusal:
                continue


@thorough
@given(any_documents() | documents)
def test_leaves_of_a_body_cut_at_any_byte_are_the_first_leaves_of_the_whole_body(
    document: dict[str, Any],
) -> None:
    whole = prompt_head(document, 10**6)
    for head in cuts(written(document)):
        assert whole.startswith(prompt_head(parse_document(head, complete=False), 10**6, cut=True))


@pytest.mark.parametrize(
    "tool",
    [
        {"type": "function", "function": {"name": "f", "parameters": NULLABLE_SOURCE}},
        {"type": "function", "name": "f", "parameters": NULLABLE_SOURCE},
        {"name": "f", "input_schema": NULLABLE_SOURCE},
    ],
    ids=["chat completions", "Responses", "Messages"],
)
def test_tool_may_have_a_nullable_parameter_with_the_name_of_a_medium(
    tool: dict[str, Any],
) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    body = written({"model": "llama", "tools": [tool], "messages": messages})
    for serving in ROUTERS:
        for complete in (True, False):
            resolved = Request(serving).resolve(body, complete=complete)
            assert resolved.model.spec.name == "llama"
