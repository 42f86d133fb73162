from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.request.json_document import model_of, parse_document
from extproc.core.request.model_name import missing_model
from extproc.core.request.paths import Api
from extproc.core.request.refusals import InvalidRequest, Refusal
from tests.core.bodies import bodies, cuts
from tests.core.builders import brief, thorough


def read_model(head: bytes, *, complete: bool) -> str | None:
    return model_of(head, parse_document(head, complete=complete), complete=complete)


class TestCompleteBody:
    def test_is_parsed(self) -> None:
        assert parse_document(b' {"model": "llama", "n": [1, 2.5, null]} ', complete=True) == {
            "model": "llama",
            "n": [1, 2.5, None],
        }

    @pytest.mark.parametrize("key_order", [["model", "messages"], ["messages", "model"]])
    def test_model_is_found_before_or_after_messages(self, key_order: list[str]) -> None:
        fields = {"model": "llama", "messages": [{"role": "user", "content": "hi"}]}
        body = json.dumps({key: fields[key] for key in key_order}).encode()
        assert read_model(body, complete=True) == "llama"

    def test_second_of_two_equal_keys_counts_as_in_vllm(self) -> None:
        assert read_model(b'{"model": "a", "x": 1, "model": "b"}', complete=True) == "b"

    @pytest.mark.parametrize(
        "body",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"   ", id="only whitespace"),
            pytest.param(b"hello", id="no JSON"),
            pytest.param(b'{"model": "llama"', id="not closed"),
            pytest.param(b'{"model": "llama",}', id="trailing comma"),
            pytest.param(b'{"model": "llama"} x', id="something after it"),
            pytest.param(b"[1]", id="a list"),
            pytest.param(b'"llama"', id="a string"),
            pytest.param(b"null", id="null"),
            pytest.param(b"7", id="a number"),
            pytest.param(b'{"model": "\xff"}', id="bad UTF-8"),
            pytest.param(b'{"model": "\xc0\xaf"}', id="overlong UTF-8"),
            pytest.param(b'{"model": "\xed\xa0\x80"}', id="UTF-8 of a surrogate"),
            pytest.param(b'{"model": "\\ud800"}', id="lone surrogate"),
            pytest.param(b'{"model": "\\ud800\\u0041"}', id="half a surrogate pair"),
            pytest.param(b'{"model": "\x00"}', id="control character"),
            pytest.param('{"model": "llama"}'.encode("utf-16"), id="UTF-16"),
            pytest.param('{"model": "llama"}'.encode("utf-32"), id="UTF-32"),
            pytest.param(b'\xef\xbb\xbf{"model": "llama"}', id="byte order mark"),
            pytest.param(b'{"model": "llama", "x": ' + b"9" * 5000 + b"}", id="5,000 digits"),
            pytest.param(b"[" * 100_000, id="deep list, open"),
            pytest.param(b"[" * 100_000 + b"]" * 100_000, id="deep list, closed"),
            pytest.param(b'{"a":' * 100_000, id="deep object"),
        ],
    )
    def test_anything_but_a_json_object_is_refused(self, body: bytes) -> None:
        with pytest.raises(InvalidRequest) as refused:
            parse_document(body, complete=True)
        assert refused.value.status == 400
        json.loads(refused.value.body())

    @pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"1e999"])
    def test_number_that_only_python_reads_is_accepted(self, number: bytes) -> None:
        # vLLM accepts these, so the sidecar does too.
        assert read_model(b'{"x": %s, "model": "llama"}' % number, complete=True) == "llama"

    @pytest.mark.parametrize(
        ("body", "why"),
        [
            (b'{"model": ""}', "'model' must be a non-empty string."),
            (b'{"model": 7}', "'model' must be a non-empty string."),
            (b'{"model": true}', "'model' must be a non-empty string."),
            (b'{"model": ["llama"]}', "'model' must be a non-empty string."),
            (b'{"model": {"name": "llama"}}', "'model' must be a non-empty string."),
        ],
    )
    def test_invalid_model_is_refused(self, body: bytes, why: str) -> None:
        with pytest.raises(InvalidRequest) as refused:
            read_model(body, complete=True)
        assert (refused.value.message, refused.value.param) == (why, "model")

    @pytest.mark.parametrize("body", [b"{}", b'{"messages": []}', b'{"model": null}'])
    def test_missing_model_gives_none(self, body: bytes) -> None:
        assert read_model(body, complete=True) is None


class TestCutBody:
    @pytest.mark.parametrize(
        ("head", "document"),
        [
            (b"{", {}),
            (b'{"mod', {}),
            (b'{"model"', {}),
            (b'{"model":', {}),
            (b'{"x": tru', {}),
            (b'{"x": "a\\', {"x": "a"}),
            (b'{"x": "a\\u4e1', {"x": "a"}),
            (b'{"x": "\\ud83d\\ude', {"x": ""}),
            (b'{"x": "a\xe4\xb8', {"x": "a"}),
            (b'{"x": [1, {"y": "abc', {"x": [1, {"y": "abc"}]}),
        ],
    )
    def test_is_parsed_up_to_the_cut(self, head: bytes, document: dict[str, Any]) -> None:
        assert parse_document(head, complete=False) == document

    def test_model_that_ends_in_half_a_character_is_refused(self) -> None:
        """In the mode that shortens strings, the parser takes it for the end of the body."""
        with pytest.raises(InvalidRequest):
            read_model(b'{"model": "llam\xd3", "messages": [[', complete=False)

    @pytest.mark.parametrize(
        "head",
        [
            pytest.param(b"", id="empty"),
            pytest.param(b"hello", id="no JSON"),
            pytest.param(b"[1, 2", id="a list"),
            pytest.param(b'{"x": "\xff\xff', id="bad UTF-8"),
            pytest.param(b'{"x": ' + b"9" * 5000, id="5,000 digits"),
            pytest.param(b'{"x": ' + b"[" * 100_000, id="deep list"),
            pytest.param(b'{"x": ' + b'{"x": ' * 100_000, id="deep object"),
            pytest.param('{"model": "lla'.encode("utf-16"), id="UTF-16"),
        ],
    )
    def test_bytes_that_cannot_become_an_object_are_refused(self, head: bytes) -> None:
        with pytest.raises(InvalidRequest):
            parse_document(head, complete=False)

    @pytest.mark.parametrize(
        "head",
        [
            pytest.param(b'{"messages": [{"role": "us', id="before it"),
            pytest.param(b'{"x": 1, "model', id="in its key"),
            pytest.param(b'{"x": 1, "model":', id="before its value"),
            pytest.param(b'{"x": 1, "model": "lla', id="in its value"),
            pytest.param(b'{"x": 1, "model": "lla\\u00', id="in an escape"),
            pytest.param(b'{"x": 1, "model": "', id="at its first quote"),
            pytest.param(b'{"x": 1, "model": nul', id="in a null"),
            pytest.param(b'{"mod\\u0065l": "lla', id="in its value, under a key with an escape"),
            pytest.param(b'{"model"' + b" " * 10_000 + b': "lla', id="in its value, far away"),
        ],
    )
    def test_cut_before_the_end_of_the_model_gives_none(self, head: bytes) -> None:
        assert read_model(head, complete=False) is None

    @pytest.mark.parametrize(
        "head",
        [
            b'{"x": 1, "model": "llama"',
            b'{"x": 1, "model": "llama" , "mes',
            b'{"model": "llama", "messages": [{"role": "user", "content": "a lo',
        ],
    )
    def test_cut_after_the_model_gives_it(self, head: bytes) -> None:
        assert read_model(head, complete=False) == "llama"

    def test_cut_in_a_second_model_does_not_give_half_of_it(self) -> None:
        for first in (b'"model": "a", ', b'"model": "a", "x": "' + b"y" * 10_000 + b'", '):
            for second in (b'"model": "lla', b'"mod\\u0065l": "lla'):
                assert read_model(b"{" + first + second, complete=False) != "lla"

    @pytest.mark.parametrize(
        "head", [b'{"model": 7, "mes', b'{"model": "", "mes', b'{"model": ["a"], "mes']
    )
    def test_invalid_model_is_refused(self, head: bytes) -> None:
        with pytest.raises(InvalidRequest):
            read_model(head, complete=False)

    @thorough
    @given(bodies())
    @example('{"model":"世界","prompt":"\\ud83d\\ude00"}'.encode())
    def test_gives_the_model_of_the_complete_body_or_none(self, body: bytes) -> None:
        whole = read_model(body, complete=True)
        found = [read_model(head, complete=False) for head in cuts(body)]
        assert set(found) <= {None, whole}
        # A longer beginning never loses the model.
        assert found == sorted(found, key=lambda model: model is not None)

    @brief
    @given(bodies())
    def test_without_missing_bytes_gives_the_same_as_a_complete_body(self, body: bytes) -> None:
        assert parse_document(body, complete=False) == parse_document(body, complete=True)
        assert read_model(body, complete=False) == read_model(body, complete=True)


@thorough
@given(st.binary() | bodies(), st.booleans())
@example(b'{"model": {"x', False)
@example(b'{"model":', True)
def test_no_bytes_raise_anything_but_a_refusal(head: bytes, complete: bool) -> None:
    try:
        model = read_model(head, complete=complete)
    except Refusal:
        return
    assert model is None or model.encode()


@pytest.mark.parametrize(("api", "what"), [(Api.GENERATE, "body"), (Api.FORM, "form")])
class TestMissingModel:
    def test_error_says_where_to_put_the_model_and_lists_known_models(
        self, api: Api, what: str
    ) -> None:
        refusal = missing_model(api, ["llama", "qwen"])
        assert refusal.message == (
            f"The {what} does not name a model. Put 'model' into the {what}, or send the header "
            "'x-model'. Known models: llama, qwen."
        )
        assert (refusal.status, refusal.code, refusal.param) == (400, "invalid_request", "model")

    def test_error_contains_the_number_of_visible_bytes(self, api: Api, what: str) -> None:
        assert missing_model(api, ["llama"], 12345).message == (
            f"The first 12345 bytes of the {what}, which is all the router sees, do not name the "
            "model. Put 'model' before the long fields, or send the header 'x-model'. "
            "Known models: llama."
        )
