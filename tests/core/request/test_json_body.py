"""Reading a large body has the same result as a full parse."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.conversation.request import Request
from extproc.core.fleet.fleet import Fleet
from extproc.core.request.json_body import JsonBody, read_json_body, read_within
from extproc.core.request.json_document import model_of, parse_document
from extproc.core.request.json_limits import ALWAYS_PARSED_BYTES, MAX_PARSED_BYTES
from extproc.core.request.refusals import InvalidRequest, Refusal
from extproc.core.request.rename import renamed_json
from extproc.core.routing.catalog import Catalog, revise
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router
from extproc.core.strategies import build
from tests.core.bodies import bodies
from tests.core.builders import model_spec, thorough

LONG = "word " * (ALWAYS_PARSED_BYTES // 5 + 1)
DENSE: list[Any] = [[]] * ALWAYS_PARSED_BYTES


def resolve(
    body: bytes, *, strategy: str = "PrefixHash", complete: bool = True, **key: Any
) -> ResolvedRequest:
    """Resolve a request with this body, with two models of one strategy."""
    router = Router(Fleet())
    specs = [model_spec(name, strategy=strategy, **key) for name in ("llama", "qwen")]
    router.publish(revise(Catalog(), specs, lambda one: build(one, Random(), router.fleet.signals)))
    return Request(router).resolve(body, complete=complete)


def chat(*messages: str, **others: Any) -> dict[str, Any]:
    """Return a chat that starts with a user message."""
    turns = [{"role": ("user", "assistant")[n % 2], "content": m} for n, m in enumerate(messages)]
    return {"model": "llama", "messages": turns, **others}


def written(document: dict[str, Any]) -> bytes:
    """Return the document as JSON."""
    return json.dumps(document).encode()


def read_up_to(limit: int, body: bytes, *, complete: bool) -> JsonBody:
    """Read a body of which only some bytes after leading blanks may be parsed."""
    start = len(body) - len(body.lstrip(b" \t\r\n"))
    return read_within(body, start, min(len(body), start + limit), complete=complete)


class TestLargeBody:
    @pytest.mark.parametrize("filler", [LONG, DENSE, {"a": DENSE}, "é" * ALWAYS_PARSED_BYTES])
    @pytest.mark.parametrize("first", [True, False])
    def test_model_is_found_before_or_after_long_fields(self, filler: object, first: bool) -> None:
        document = {"model": "qwen", "x": filler} if first else {"x": filler, "model": "qwen"}
        assert resolve(written(document)).model.spec.name == "qwen"

    @pytest.mark.parametrize("filler", [LONG, DENSE])
    def test_second_of_two_models_counts(self, filler: object) -> None:
        body = b'{"model": "llama", "x": %b, "model": "qwen"}' % json.dumps(filler).encode()
        assert resolve(body).model.spec.name == "qwen"

    @pytest.mark.parametrize("strategy", ["PrefixHash", "PrefixCache"])
    @pytest.mark.parametrize("turns", [1, 2, 400, 3000])
    def test_chat_is_read_to_its_end(self, strategy: str, turns: int) -> None:
        say = LONG[: 600_000 // turns] + "[1, 2], {3: 4}. "
        document = chat("Hello!", *[say] * turns)
        body = written(document)
        assert ALWAYS_PARSED_BYTES < len(body) < MAX_PARSED_BYTES
        known = resolve(body, strategy=strategy)
        assert known.prefix == "Hello!"
        if known.prompt is not None:
            assert known.prompt.bytes == sum(
                len(m["content"]) + len(m["role"]) + 2 for m in document["messages"]
            )
            assert known.prompt.is_complete

    def test_numbers_inside_strings_do_not_count_as_values(self) -> None:
        table = "1,2,[3],{4}," * 40_000
        known = resolve(written(chat(table, "x")), strategy="PrefixCache").prompt
        assert known is not None
        assert known.is_complete

    @pytest.mark.parametrize(
        "source", ["FirstUserMessage", "SystemAndFirstUserMessage", "PromptHead"]
    )
    def test_prefix_beyond_the_beginning_is_found(self, source: str) -> None:
        document = chat("Hello!")
        document["messages"].insert(0, {"role": "system", "content": LONG})
        key: dict[str, Any] = {"prefixSource": source, "prefixCharLength": 200_000}
        prefix = resolve(written(document), **key).prefix
        assert prefix.endswith("Hello!")

    def test_body_with_many_values_has_the_prefix_of_its_beginning(self) -> None:
        document = chat("Hello!", *["x"] * ALWAYS_PARSED_BYTES)
        assert resolve(written(document)).prefix == "Hello!"
        known = resolve(written(document), strategy="PrefixCache").prompt
        assert known is not None
        assert not known.is_complete
        whole = sum(len(m["content"]) + len(m["role"]) + 2 for m in document["messages"])
        assert known.bytes == pytest.approx(whole, rel=0.05)

    @pytest.mark.parametrize(
        "break_it",
        [
            pytest.param(lambda body: body[:-1], id="not closed"),
            pytest.param(lambda body: body + b"x", id="something after it"),
            pytest.param(lambda body: body[:-3] + b",}]}", id="bad syntax"),
            pytest.param(lambda body: body[:-1] + b',"x":"\xff"}', id="bad UTF-8"),
            pytest.param(
                lambda body: body[:-1] + ',"x":"é'.encode() + b'\xc3"}', id="half a letter"
            ),
            pytest.param(lambda body: body[:-1] + b',"x":' + b"[" * 10_000, id="deep list, open"),
            pytest.param(
                lambda body: body[:-1] + b',"x":' + b"[" * 10_000 + b"]" * 10_000 + b"}",
                id="deep list, closed",
            ),
            pytest.param(lambda body: body[:-1] + b',"model":null}', id="model null"),
            pytest.param(lambda body: body[:-1] + b',"model":7}', id="model a number"),
            pytest.param(lambda body: body[:-1] + b',"model":"\\ud800"}', id="lone surrogate"),
            pytest.param(lambda body: b"[" + body + b"]", id="a list"),
        ],
    )
    @pytest.mark.parametrize("filler", [LONG, DENSE, LONG * 20])
    def test_invalid_body_is_refused(
        self, break_it: Callable[[bytes], bytes], filler: object
    ) -> None:
        with pytest.raises(InvalidRequest) as refused:
            resolve(break_it(written({"model": "llama", "x": filler})))
        json.loads(refused.value.body())

    @pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999"])
    def test_number_that_only_python_reads_is_accepted_with_few_values(self, number: bytes) -> None:
        body = written(chat("Hello!", LONG))[:-1] + b',"x":%b}' % number
        assert resolve(body).prefix == "Hello!"

    def test_leading_blanks_are_skipped(self) -> None:
        assert resolve(b" " * 2 * MAX_PARSED_BYTES + written(chat("Hello!"))).prefix == "Hello!"


class TestLargeCutBody:
    def test_model_at_the_beginning_is_found(self) -> None:
        body = written(chat(LONG, *["x"] * ALWAYS_PARSED_BYTES))
        assert resolve(body[:-100], complete=False).model.spec.name == "llama"

    def test_model_at_the_end_is_found_if_nothing_is_missing(self) -> None:
        body = written({"x": DENSE, "model": "qwen"})
        assert resolve(body, complete=False).model.spec.name == "qwen"

    def test_error_without_a_model_contains_the_parsed_bytes(self) -> None:
        body = written({"x": DENSE, "model": "qwen", "y": 1})
        with pytest.raises(InvalidRequest, match=r"The first [0-9]{5} bytes of the body"):
            resolve(body[:-1], complete=False)


class TestRenamedLargeBody:
    @pytest.mark.parametrize("whole", [True, False])
    @pytest.mark.parametrize("filler", [LONG, DENSE, [{"model": "x"}] * 100 + [LONG]])
    @pytest.mark.parametrize("first", [True, False])
    def test_only_the_model_changes(self, filler: object, whole: bool, first: bool) -> None:
        members = {"model": "llama", "x": filler, "y": {"model": "z"}}
        document = members if first else dict(reversed(members.items()))
        body = written(document)
        expected = body.replace(b'"model": "llama"', b'"model": "qwen"')
        assert renamed_json(body, "qwen", whole=whole) == expected

    def test_both_of_two_models_are_replaced(self) -> None:
        body = b'{"model": "a", "x": "%b", "model": "b"}' % LONG.encode()
        assert renamed_json(body, "c", whole=True) == body.replace(b'"a"', b'"c"').replace(
            b'"b"', b'"c"'
        )

    def test_other_models_are_kept(self) -> None:
        head = written({"x": {"model": "a"}, "y": 'a "model": "b"', "z": LONG})
        assert renamed_json(head, "c") == head

    def test_model_in_a_cut_body_is_replaced(self) -> None:
        head = written({"x": {"model": "a"}, "model": "b", "z": LONG})[:-9]
        assert renamed_json(head, "c") == head.replace(b'"b"', b'"c"')


@thorough
@given(st.binary() | bodies(), st.integers(0, 100), st.booleans())
def test_any_limit_of_parsed_bytes_gives_the_result_of_a_full_parse(
    body: bytes, limit: int, complete: bool
) -> None:
    """A body that is not strict JSON may differ, but raises nothing except a refusal."""
    try:
        read = read_up_to(limit, body, complete=complete)
    except Refusal:
        return
    assert read.parsed_bytes <= len(body)
    if read.model is None:
        assert not complete
        return
    try:
        whole = parse_document(body, complete=True)
    except InvalidRequest:
        return  # the scan tolerates more in the values that it skips
    assert read.model == model_of(body, whole, complete=True)
    assert set(read.document) - {"model"} <= set(whole)


@thorough
@given(bodies(), st.integers(1, 100))
def test_no_limit_of_parsed_bytes_rejects_a_valid_body(body: bytes, limit: int) -> None:
    assert read_up_to(limit, body, complete=True).model == json.loads(body)["model"]


@thorough
@given(st.binary() | bodies(), st.booleans())
def test_small_body_is_parsed_in_full(body: bytes, complete: bool) -> None:
    try:
        read = read_json_body(body, complete=complete)
    except Refusal:
        return
    document = parse_document(body, complete=complete)
    assert read == (model_of(body, document, complete=complete), document, len(body))
