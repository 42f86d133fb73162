from __future__ import annotations

import json

import pytest

from extproc.core.request.refusals import (
    InvalidRequest,
    ModelNotFound,
    NoEndpoints,
    Refusal,
    UnknownPath,
    UnsupportedBodyMode,
)


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (InvalidRequest("no"), 400, "invalid_request"),
        (ModelNotFound("x", ["llama"]), 404, "model_not_found"),
        (UnknownPath("GET", "/x"), 404, "unknown_path"),
        (NoEndpoints("llama"), 503, "no_endpoints"),
        (UnsupportedBodyMode(), 500, "unsupported_body_mode"),
    ],
)
def test_refusal_has_status_and_code_in_openai_shape(
    refusal: Refusal, status: int, code: str
) -> None:
    assert refusal.status == status
    assert refusal.headers["content-type"] == "application/json"
    (error,) = json.loads(refusal.body()).values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"] == refusal.message


def test_model_not_found_lists_known_models() -> None:
    message = ModelNotFound("lama", ["llama", "qwen"]).message
    assert message == "The model 'lama' does not exist. Known models: llama, qwen."


def test_only_the_first_fifty_models_are_listed() -> None:
    message = ModelNotFound("x", [f"m{i:03}" for i in range(60)]).message
    assert "m049 and 10 more." in message
    assert "m050" not in message


def test_long_name_is_shortened_in_the_response() -> None:
    assert len(ModelNotFound("x" * 1_000_000, ["llama"]).body()) < 500
    assert len(UnknownPath("x" * 1_000_000, "/" + "y" * 1_000_000).body()) < 500


def test_unknown_name_from_the_client_is_not_a_metric_label() -> None:
    assert ModelNotFound("secret", ["llama"]).model == "unknown"
    assert UnknownPath("GET", "/secret").model == "unknown"
    assert NoEndpoints("llama").model == "llama"


def test_no_endpoints_has_retry_after() -> None:
    assert NoEndpoints("llama").headers["retry-after"] == "2"
    assert "retry-after" not in InvalidRequest("no").headers


def test_no_endpoints_names_the_adapter() -> None:
    assert NoEndpoints("llama", "sql").message == (
        "No endpoint of model 'llama' with adapter 'sql' is ready."
    )
