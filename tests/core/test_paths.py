from __future__ import annotations

import pytest

from extproc.core.paths import INFERENCE_PATHS, Api, without_query

GENERATE = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
MODEL_ONLY = [
    *["/v1/embeddings", "/v1/rerank", "/rerank", "/v1/score", "/score"],
    *["/pooling", "/classify", "/tokenize", "/detokenize"],
]
FORM = ["/v1/audio/transcriptions", "/v1/audio/translations"]


def test_the_inference_paths_are_those_of_vllm() -> None:
    assert {
        **dict.fromkeys(GENERATE, Api.GENERATE),
        **dict.fromkeys(MODEL_ONLY, Api.MODEL_ONLY),
        **dict.fromkeys(FORM, Api.FORM),
    } == INFERENCE_PATHS


@pytest.mark.parametrize(
    ("path", "bare"),
    [
        ("/v1/completions", "/v1/completions"),
        ("/v1/completions?", "/v1/completions"),
        ("/v1/completions?a=b?c", "/v1/completions"),
        ("", ""),
    ],
)
def test_the_query_is_no_part_of_the_path(path: str, bare: str) -> None:
    assert without_query(path) == bare
