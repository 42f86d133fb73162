from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from extproc.core.request.form_body import model_in_form
from extproc.core.request.refusals import InvalidRequest, Refusal
from tests.core.builders import thorough

CONTENT_TYPE = "multipart/form-data; boundary=XX"

FILE = (
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n'
    b"Content-Type: audio/wav\r\n\r\nRIFF\r\n\r\n\x00\xff--X name=model\r\n"
)
MODEL = b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper'


# A file whose name and content look like a field `model`, if quotes and lines are ignored.
TRAP = (
    b'Content-Disposition: form-data; filename="a; name=model; b.wav"; name="file"\r\n'
    b"Content-Type: audio/wav\r\n\r\nRIFF--XX\r\n"
    b'Content-Disposition: form-data; name="model"\r\n\r\ntrap\n--XX trap'
)


def form(*parts: bytes) -> bytes:
    return b"".join(b"--XX\r\n" + part + b"\r\n" for part in parts) + b"--XX--\r\n"


def model_of(body: bytes, content_type: str = CONTENT_TYPE) -> str | None:
    return model_in_form(body, content_type)


@pytest.mark.parametrize("parts", [(MODEL,), (MODEL, FILE), (FILE, MODEL), (FILE, MODEL, FILE)])
def test_model_field_is_found_in_any_position(parts: tuple[bytes, ...]) -> None:
    assert model_of(form(*parts)) == "whisper"


@pytest.mark.parametrize(
    "content_type",
    [
        "multipart/form-data; boundary=XX",
        'multipart/form-data; boundary="XX"',
        "multipart/form-data; charset=utf-8; boundary=XX",
        "multipart/form-data;boundary=XX",
        "Multipart/Form-Data; Boundary=XX",
        "multipart/form-data ; boundary=XX ; x=y",
        'multipart/form-data; x="; boundary=YY"; boundary=XX',
    ],
)
def test_boundary_is_read_in_all_header_notations(content_type: str) -> None:
    assert model_of(form(FILE, MODEL), content_type) == "whisper"


def test_quoted_boundary_can_contain_special_characters() -> None:
    body = form(MODEL).replace(b"XX", b"a b:c?")
    assert model_of(body, 'multipart/form-data; boundary="a b:c?"') == "whisper"


@pytest.mark.parametrize(
    "field",
    [
        b'Content-Disposition: form-data; name="model"\r\n\r\nwhisper',
        b"Content-Disposition: form-data; name=model\r\n\r\nwhisper",
        b'content-disposition:form-data;name="model"\r\n\r\nwhisper',
        b'Content-Type: text/plain\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper',
        b'Content-Disposition: form-data; name="model"\r\n\r\n whisper \n',
        b"Content-Disposition: form-data; x; NAME=model ; y\r\n\r\nwhisper",
        b'Content-Disposition: form-data; filename="a; name=file"; name="model"\r\n\r\nwhisper',
        b'Content-Disposition: form-data; filename="\\"; name=\\""; name=model\r\n\r\nwhisper',
        b'Content-Disposition: form-data; filename="a\\\\"; name="mo\\del"\r\n\r\nwhisper',
        b'Content-Disposition: form-data; filename=my "a;b".wav; name=model\r\n\r\nwhisper',
    ],
)
def test_field_is_read_in_all_client_notations(field: bytes) -> None:
    assert model_of(form(field)) == "whisper"


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param(b'filename="a; name=model; b.wav"; name="file"', id="in quotes"),
        pytest.param(
            b'filename="a\\"; name=model; b.wav"; name="file"', id="after an escaped quote"
        ),
        pytest.param(b'filename="a; name=model', id="in quotes without an end"),
        pytest.param(b'filename="a; name=model\\', id="in quotes that end in an escape"),
        pytest.param(b'name="file"; x=name=model', id="in another's value"),
        pytest.param(b'name="model', id="without its closing quote"),
        pytest.param(b'name="file"; name="model"', id="as a second name"),
        pytest.param(b"filename=model", id="at the end of a longer name"),
    ],
)
def test_similar_parameters_are_not_the_field_name(parameters: bytes) -> None:
    trap = b"Content-Disposition: form-data; " + parameters + b"\r\n\r\nRIFF"
    assert model_of(form(trap, MODEL)) == "whisper"


@pytest.mark.parametrize("parts", [(TRAP, MODEL), (MODEL, TRAP), (TRAP, MODEL, TRAP)])
def test_delimiter_counts_only_at_the_start_of_a_line(parts: tuple[bytes, ...]) -> None:
    assert model_of(form(*parts)) == "whisper"


def test_model_can_contain_text_similar_to_a_delimiter() -> None:
    assert model_of(form(MODEL.replace(b"whisper", b"AU--XX"))) == "AU--XX"


@pytest.mark.parametrize("preamble", [b"\r\n", b"This is a form.\r\n", b"x--XX\r\n"])
def test_preamble_is_skipped(preamble: bytes) -> None:
    assert model_of(preamble + form(MODEL)) == "whisper"


def test_non_ascii_model_is_decoded() -> None:
    assert model_of(form(MODEL.replace(b"whisper", "ささやき".encode()))) == "ささやき"


@pytest.mark.parametrize("length", range(1, len(form(FILE, MODEL))))
def test_cut_form_gives_the_whole_model_or_none(length: int) -> None:
    body = form(FILE, MODEL)
    # The value is complete only after the next delimiter.
    expected = "whisper" if length >= body.rindex(b"--XX") + len(b"--XX") else None
    assert model_in_form(body[:length], CONTENT_TYPE) == expected


@pytest.mark.parametrize(
    ("body", "content_type", "why"),
    [
        (b"", CONTENT_TYPE, "The request has no body; a multipart form is expected."),
        (
            form(MODEL.replace(b"whisper", b"  ")),
            CONTENT_TYPE,
            "'model' must be a non-empty string.",
        ),
        (
            form(MODEL),
            "application/json",
            "This path expects multipart/form-data with a boundary.",
        ),
        (
            form(MODEL),
            "multipart/form-data",
            "This path expects multipart/form-data with a boundary.",
        ),
        (form(MODEL), "", "This path expects multipart/form-data with a boundary."),
    ],
)
def test_invalid_form_is_refused(body: bytes, content_type: str, why: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        model_of(body, content_type)
    assert (refused.value.message, refused.value.status) == (why, 400)


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param("boundary*=a; boundary*0=b", id="two continuations at odds"),
        pytest.param(f"boundary*{'0' * 5000}=x", id="a continuation of 5,000 digits"),
    ],
)
def test_no_content_type_raises_anything_but_a_refusal(parameters: str) -> None:
    with pytest.raises(Refusal):
        model_of(b"x", f"multipart/form-data; {parameters}")


@pytest.mark.parametrize(
    "parameters",
    [
        pytest.param(b"name*=a; name*0=b", id="two continuations at odds"),
        pytest.param(b"name*" + b"0" * 5000 + b"=x", id="a continuation of 5,000 digits"),
    ],
)
def test_malformed_parameters_do_not_name_the_model(parameters: bytes) -> None:
    fields = form(b"Content-Disposition: form-data; " + parameters + b"\r\n\r\nx")
    assert model_of(fields) is None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param("b'content-disposition:\\n' * 20_000", id="many lines"),
        pytest.param("b'content-disposition: x;' + b' ' * 400_000", id="many blanks"),
        pytest.param("b'content-disposition: x' + b'; x' * 100_000", id="many parameters"),
        pytest.param("b'content-disposition: x; name=' + b'\"' * 400_000", id="many quotes"),
        pytest.param("b'content-disposition: x; y=\"' + b'\\\\' * 400_000", id="many escapes"),
        pytest.param("b'\\r\\n--XX\\r\\ncontent-disposition:;\"' * 20_000", id="many parts"),
        pytest.param("b'\\r\\n--X' * 100_000", id="much like a delimiter"),
    ],
)
def test_no_header_causes_catastrophic_backtracking(fields: str) -> None:
    # A separate process can be stopped. With backtracking this takes minutes, not milliseconds.
    code = (
        "from extproc.core.request.form_body import model_in_form\n"
        f"body = b'--XX\\r\\n' + {fields} + b'\\r\\n\\r\\nx\\r\\n--XX'\n"
        f"print(model_in_form(body, {CONTENT_TYPE!r}))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert run.stdout == "None\n"


pieces = st.lists(
    st.sampled_from([b"--XX", b"\r\n", b"--", b":", b";", b'"', b"name=", b"model", MODEL, FILE])
    | st.binary(max_size=4)
)


@thorough
@given(
    pieces.map(b"".join),
    st.sampled_from([CONTENT_TYPE, 'multipart/form-data; boundary="XX']) | st.text(),
)
@example(b"--XX\r\n\r\n--XX", CONTENT_TYPE)
def test_no_bytes_raise_anything_but_a_refusal(body: bytes, content_type: str) -> None:
    try:
        model = model_in_form(body, content_type)
    except Refusal:
        return
    assert model is None or model
