from __future__ import annotations

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.request.form_body import model_in_form
from extproc.core.request.json_document import model_of, parse_document
from extproc.core.request.rename import renamed_form, renamed_json
from tests.core.bodies import bodies, cuts, text
from tests.core.builders import brief, thorough
from tests.core.request.test_form_body import CONTENT_TYPE, FILE, MODEL, TRAP, form

# Text that looks like the key, its end, or a bracket.
TRICKS = ["model", '"model":', '"model": "x"', '\\"', "\\", 'x"model"', "{", "]", ":", "\\u006d"]
tricky = st.sampled_from(TRICKS) | st.text(st.sampled_from('model"\\{}[]: u0é😀'), max_size=8)
values = st.recursive(
    tricky | st.none() | st.booleans() | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(tricky, inner, max_size=3),
    max_leaves=10,
)
blanks = st.sampled_from(["", "", " ", "\n\t", "\r\n  "])
names = tricky | text


@st.composite
def spelled(draw: st.DrawFn, key: str) -> str:
    """Write a key with any of its letters as escapes."""
    forms = st.sampled_from(["{}", "{}", "\\u{:04x}", "\\u{:04X}"])
    written = (draw(forms) for _ in key)
    letters = zip(key, written, strict=True)
    return '"' + "".join(f.format(ord(c) if "u" in f else c) for c, f in letters) + '"'


@st.composite
def objects(draw: st.DrawFn) -> bytes:
    """Write a JSON object with one or more `model` keys, the last one a string, and any blanks."""
    others = tricky.filter(lambda key: key != "model").map(json.dumps)
    members = draw(st.lists(st.tuples(others, values), max_size=4))
    models = [*draw(st.lists(values, max_size=2)), draw(names)]
    places = sorted(draw(st.integers(0, len(members))) for _ in models)
    for place, model in reversed(list(zip(places, models, strict=True))):
        members.insert(place, (draw(spelled("model")), model))
    ascii_only = draw(st.booleans())
    parts = (
        f"{draw(blanks)}{key}{draw(blanks)}:{draw(blanks)}"
        f"{json.dumps(value, ensure_ascii=ascii_only)}{draw(blanks)}"
        for key, value in members
    )
    return f"{draw(blanks)}{{{','.join(parts)}}}{draw(blanks)}".encode()


class TestCompleteObject:
    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (b'{"model": "llama"}', b'{"model": "qwen"}'),
            (b'{"model":"llama","n":1}', b'{"model":"qwen","n":1}'),
            (b' {\n "model"\t:\r\n"llama" , "n": 1.0} ', b' {\n "model"\t:\r\n"qwen" , "n": 1.0} '),
            (b'{"n": NaN, "model": ""}', b'{"n": NaN, "model": "qwen"}'),
            (b'{"model": "\\u0061\\"\\\\"}', b'{"model": "qwen"}'),
            (b'{"mo\\u0064el": "llama"}', b'{"mo\\u0064el": "qwen"}'),
            (b'{"\\u006D\\u006F\\u0064\\u0065\\u006C": "a"}', None),
        ],
    )
    def test_only_the_name_changes(self, body: bytes, expected: bytes | None) -> None:
        assert renamed_json(body, "qwen") == (expected or body.replace(b'"a"', b'"qwen"'))

    @pytest.mark.parametrize(
        "other",
        [
            pytest.param('"x": {"model": "a"}', id="in an object"),
            pytest.param('"x": [{"model": "a"}, {"y": {"model": "a"}}]', id="deeper"),
            pytest.param('"x": "model"', id="as a value"),
            pytest.param('"x": ["model", "model"]', id="as values"),
            pytest.param(f'"x": {json.dumps(json.dumps({"model": "a"}))}', id="in a text"),
            pytest.param('"x\\"model": "a"', id="at the end of a longer key"),
            pytest.param('"models": "a", "Model": "a", " model": "a"', id="like it"),
            pytest.param('"x": "]}\\\\", "y": "{[\\""', id="after brackets in texts"),
        ],
    )
    @pytest.mark.parametrize("first", [True, False])
    def test_other_models_are_kept(self, other: str, first: bool) -> None:
        members = [other, '"model": "%s"']
        body = "{" + ", ".join(members if first else members[::-1]) + "}"
        renamed = renamed_json((body % "llama").encode(), "qwen")
        assert renamed.decode() == body % "qwen"

    def test_both_of_two_models_are_replaced(self) -> None:
        # The sidecar and vLLM use the last one, other servers the first.
        body = b'{"model": "a", "x": 1, "mod\\u0065l": "b"}'
        assert renamed_json(body, "c") == b'{"model": "c", "x": 1, "mod\\u0065l": "c"}'

    @thorough
    @given(objects(), names)
    @example(b'{"x": "\\\\", "model": "a"}', "b")
    @example(b'{"x\\\\\\"model": 1, "model": "a"}', "b")
    def test_parsed_object_differs_only_in_its_model(self, body: bytes, name: str) -> None:
        renamed = renamed_json(body, name)
        assert json.loads(renamed) == {**json.loads(body), "model": name}

    @thorough
    @given(bodies(), names)
    def test_bytes_around_the_value_are_kept(self, body: bytes, name: str) -> None:
        old, new = json.dumps(json.loads(body)["model"]), json.dumps(name)
        raw = json.dumps(json.loads(body)["model"], ensure_ascii=False)
        expected = {
            body[:i] + new.encode() + body[i + len(value) :]
            for value in (old.encode(), raw.encode())
            for i in range(len(body))
            if body.startswith(value, i)
        }
        assert renamed_json(body, name) in expected

    @brief
    @given(objects(), names)
    def test_last_rename_wins(self, body: bytes, name: str) -> None:
        assert renamed_json(renamed_json(body, "x" * 50), name) == renamed_json(body, name)


class TestCutObject:
    @pytest.mark.parametrize(
        "head",
        [
            pytest.param(b"{", id="at once"),
            pytest.param(b'{"mod', id="in the key"),
            pytest.param(b'{"model"', id="after the key"),
            pytest.param(b'{"model": ', id="before the value"),
            pytest.param(b'{"model": "', id="at the value's quote"),
            pytest.param(b'{"model": "lla', id="in the value"),
            pytest.param(b'{"model": "lla\\', id="in an escape"),
            pytest.param(b'{"model": "lla\\"', id="after a quote that is escaped"),
            pytest.param(b'{"messages": [{"content": "the \\"model\\": \\"x\\" is', id="before it"),
            pytest.param(b'{"messages": [{"model": "x"}, {"model": "y"', id="in another"),
        ],
    )
    def test_cut_before_the_end_of_the_value_changes_nothing(self, head: bytes) -> None:
        assert renamed_json(head, "qwen") is head

    def test_cut_after_the_value_replaces_it(self) -> None:
        head = b'{"model": "llama", "messages": [{"content": "the \\"model\\": \\'
        assert renamed_json(head, "qwen") == head.replace(b"llama", b"qwen")

    @thorough
    @given(bodies(), names)
    def test_gives_the_beginning_of_the_renamed_whole_once_the_model_is_readable(
        self, body: bytes, name: str
    ) -> None:
        whole = renamed_json(body, name)
        for head in cuts(body):
            document = parse_document(head, complete=False)
            renamed = renamed_json(head, name)
            if model_of(head, document, complete=False) is None:
                assert renamed is head
            else:
                assert renamed + body[len(head) :] == whole

    @thorough
    @given(objects(), names)
    def test_changes_nothing_else_than_the_whole_object_does(self, body: bytes, name: str) -> None:
        whole = renamed_json(body, name)
        for head in cuts(body):
            assert renamed_json(renamed_json(head, name) + body[len(head) :], name) == whole


class TestForm:
    def test_only_the_name_changes(self) -> None:
        for parts in ((MODEL, FILE), (FILE, MODEL, FILE), (FILE, MODEL)):
            body = form(*parts)
            renamed = renamed_form(body, CONTENT_TYPE, "ささやき")
            assert renamed == body.replace(b"whisper", "ささやき".encode())
            assert model_in_form(renamed, CONTENT_TYPE) == "ささやき"

    def test_file_similar_to_the_field_is_kept(self) -> None:
        for parts in ((MODEL, TRAP), (TRAP, MODEL, TRAP), (TRAP, MODEL)):
            body = form(*parts)
            renamed = renamed_form(body, CONTENT_TYPE, "tiny")
            assert renamed == body.replace(b"whisper", b"tiny")
        assert renamed_form(form(TRAP), CONTENT_TYPE, "tiny") == form(TRAP)

    def test_all_fields_of_that_name_are_replaced(self) -> None:
        other = MODEL.replace(b"whisper", b"")
        renamed = renamed_form(form(MODEL, FILE, other), CONTENT_TYPE, "tiny")
        tiny = MODEL.replace(b"whisper", b"tiny")
        assert renamed == form(tiny, FILE, tiny)

    @pytest.mark.parametrize("value", [b" whisper \n", b"\r\n", b"", b"a\r\n\r\nb"])
    def test_whole_value_is_replaced(self, value: bytes) -> None:
        field = MODEL.replace(b"whisper", value)
        expected = form(FILE, MODEL.replace(b"whisper", b"tiny"))
        assert renamed_form(form(FILE, field), CONTENT_TYPE, "tiny") == expected

    @pytest.mark.parametrize("parts", [(MODEL, FILE), (FILE, MODEL, FILE)])
    def test_cut_form_is_changed_only_where_the_value_is_complete(
        self, parts: tuple[bytes, ...]
    ) -> None:
        body = form(*parts)
        complete_at = body.index(b"--XX", body.index(b"whisper")) + len(b"--XX")
        for head in cuts(body):
            expected = head.replace(b"whisper", b"tiny") if len(head) >= complete_at else head
            assert renamed_form(head, CONTENT_TYPE, "tiny") == expected

    def test_form_without_the_field_is_unchanged(self) -> None:
        for body in (form(FILE), form(), b"--XX", b"x", b""):
            assert renamed_form(body, CONTENT_TYPE, "tiny") is body


@pytest.mark.parametrize(
    "repeated",
    [
        pytest.param(b'"model":"a",', id="keys"),
        pytest.param(b'"x":{"model":"a"},', id="keys of others"),
        pytest.param(b'"\\u006dodel":"a",', id="keys with escapes"),
    ],
)
def test_number_of_keys_is_limited(repeated: bytes) -> None:
    body = b"{" + repeated * 5_000 + b'"model":"last"}'
    renamed = renamed_json(body, "qwen")
    assert renamed.endswith(b'"last"}')
    assert renamed.count(b"qwen") <= 1_000
    assert renamed.replace(b"qwen", b"a") == body
