"""JSON bodies that begin with UTF-8's byte order mark. Python's `json.loads` accepts them."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Sequence
from typing import Any

import pytest

from extproc.core.conversation.head import Head
from extproc.core.conversation.request import Request
from extproc.core.request.json_limits import ALWAYS_PARSED_BYTES, MAX_PARSED_VALUES
from extproc.core.request.refusals import InvalidRequest
from extproc.core.routing.router import Router
from tests.core.builders import model_spec, router

USER = {"role": "user", "content": "Hello!"}
BODIES = [
    pytest.param({"messages": [USER]}, id="small"),
    pytest.param({"messages": [USER, {**USER, "x": "y" * ALWAYS_PARSED_BYTES}]}, id="large"),
    pytest.param({"messages": [USER] * MAX_PARSED_VALUES}, id="not parsed in full"),
    pytest.param({"x": {"model": "y"}, "y": "z" * ALWAYS_PARSED_BYTES}, id="two models"),
]
STRATEGIES = ["PrefixHash", "PrefixCache"]


def serving(strategy: str) -> Router:
    return router(model_spec("llama", strategy=strategy, aliases=["l"]))


def sent(document: dict[str, Any]) -> bytes:
    """Return a body with the model's alias first, without the mark."""
    return json.dumps({"model": "l", **document}).encode()


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("document", BODIES)
@pytest.mark.parametrize("missing", [0, 20])
class TestMarkedBody:
    def test_is_read_like_the_body_without_the_mark(
        self, strategy: str, document: dict[str, Any], missing: int
    ) -> None:
        body = sent(document)
        body = body[: len(body) - missing]
        plain, marked = (
            Request(serving(strategy)).resolve(head, complete=not missing)
            for head in (body, BOM_UTF8 + body)
        )
        assert (marked.model.spec.name, marked.prefix) == (plain.model.spec.name, plain.prefix)
        if plain.prompt is None or marked.prompt is None:
            assert plain.prompt is marked.prompt
            return
        assert marked.prompt.blocks == plain.prompt.blocks
        assert marked.prompt.is_complete == plain.prompt.is_complete
        assert marked.prompt.bytes == pytest.approx(plain.prompt.bytes, rel=0.001)

    def test_keeps_the_mark_where_the_body_changes(
        self, strategy: str, document: dict[str, Any], missing: int
    ) -> None:
        body = BOM_UTF8 + sent(document)
        body = body[: len(body) - missing]
        target = serving(strategy)
        request = Request(target, creates_response=True)
        decision = target.decide(request.resolve(body, complete=not missing))
        identified = BOM_UTF8 + b'{"request_id":"%b",' % str(decision.response_id).encode()
        assert decision.response_id is not None
        assert request.edited(body, decision) == identified + body[4:].replace(
            b'"model": "l"', b'"model": "llama"', 1
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("pieces", [[1, 2], [2, 3], [3, 4], [1, 1, 1, 1]])
def test_mark_may_arrive_in_pieces(strategy: str, pieces: Sequence[int]) -> None:
    body, head = BOM_UTF8 + sent({"messages": [USER]}), Head(Request(serving(strategy)))
    for size in pieces:
        assert head.add(body[:size]) is None
        body = body[size:]
    assert head.end(body).prefix == "Hello!"


@pytest.mark.parametrize("body", [BOM_UTF8, BOM_UTF8 * 2 + b"{}", BOM_UTF8 + b"[]", b"\xef\xbb{}"])
def test_mark_alone_makes_no_valid_body(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        Request(serving("PrefixHash")).resolve(body, complete=True)
