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
def test_every_refusal_has_its_status_and_code_in_openais_shape(
    refusal: Refusal, status: int, code: str
) -> None:
    assert refusal.status == status
    assert refusal.headers["content-type"] == "application/json"
    (error,) = json.loads(refusal.body()).values()
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == code
    assert error["message"] == refusal.message


def test_an_unknown_model_is_told_which_are_known() -> None:
    message = ModelNotFound("lama", ["llama", "qwen"]).message
    assert message == "The model 'lama' does not exist. Known models: llama, qwen."


def test_where_there_are_many_models_the_first_fifty_are_named() -> None:
    message = ModelNotFound("x", [f"m{i:03}" for i in range(60)]).message
    assert "m049 and 10 more." in message
    assert "m050" not in message


def test_a_hostile_name_does_not_flood_the_answer() -> None:
    assert len(ModelNotFound("x" * 1_000_000, ["llama"]).body()) < 500
    assert len(UnknownPath("x" * 1_000_000, "/" + "y" * 1_000_000).body()) < 500


def test_a_name_only_the_client_knows_is_never_the_model_that_is_counted() -> None:
    assert ModelNotFound("secret", ["llama"]).model == "unknown"
    assert UnknownPath("GET", "/secret").model == "unknown"
    assert NoEndpoints("llama").model == "llama"


def test_without_endpoints_the_client_is_told_when_to_come_again() -> None:
    assert NoEndpoints("llama").headers["retry-after"] == "2"
    assert "retry-after" not in InvalidRequest("no").headers


def test_without_endpoints_the_adapter_is_named() -> None:
    assert NoEndpoints("llama", "sql").message == (
        "No endpoint of model 'llama' with adapter 'sql' is ready."
    )
