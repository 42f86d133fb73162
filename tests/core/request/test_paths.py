from __future__ import annotations

from urllib.parse import unquote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from extproc.core.request.paths import (
    INFERENCE_PATHS,
    Api,
    Route,
    match,
    model_in_query,
    without_query,
)
from tests.core.builders import thorough

EXACT = [path for path in INFERENCE_PATHS if "*" not in path]
WITH_ID = [path for path in INFERENCE_PATHS if "*" in path]

# The inference routes of vLLM 0.32.
VLLM = {
    "/v1/chat/completions": Api.GENERATE,
    "/v1/chat/completions/batch": Api.GENERATE,
    "/v1/chat/completions/render": Api.MODEL_ONLY,
    "/v1/completions": Api.GENERATE,
    "/v1/completions/render": Api.MODEL_ONLY,
    "/v1/responses": Api.GENERATE,
    "/v1/messages": Api.GENERATE,
    "/v1/messages/count_tokens": Api.MODEL_ONLY,
    "/inference/v1/generate": Api.NATIVE,
    "/invocations": Api.GENERATE,
    "/generative_scoring": Api.MODEL_ONLY,
    "/v1/embeddings": Api.MODEL_ONLY,
    "/v2/embed": Api.MODEL_ONLY,
    "/v1/rerank": Api.MODEL_ONLY,
    "/v2/rerank": Api.MODEL_ONLY,
    "/rerank": Api.MODEL_ONLY,
    "/v1/score": Api.MODEL_ONLY,
    "/score": Api.MODEL_ONLY,
    "/pooling": Api.MODEL_ONLY,
    "/classify": Api.MODEL_ONLY,
    "/tokenize": Api.MODEL_ONLY,
    "/detokenize": Api.MODEL_ONLY,
    "/v1/audio/transcriptions": Api.FORM,
    "/v1/audio/translations": Api.FORM,
    "/v1/realtime": Api.BARE,
}
OMNI = {
    "/v1/audio/speech": Api.MODEL_ONLY,
    "/v1/audio/generate": Api.MODEL_ONLY,
    "/v1/images/generations": Api.MODEL_ONLY,
    "/v1/images/edits": Api.FORM,
    "/v1/videos": Api.FORM,
    "/v1/videos/sync": Api.FORM,
}
SGLANG = {"/generate": Api.NATIVE, "/encode": Api.MODEL_ONLY, "/v1/classify": Api.MODEL_ONLY}


@pytest.mark.parametrize(("path", "api"), [*VLLM.items(), *OMNI.items(), *SGLANG.items()])
def test_paths_of_inference_servers_are_known(path: str, api: Api) -> None:
    assert match(path) == Route(api, path)


@pytest.mark.parametrize("path", EXACT)
def test_path_matches_with_any_prefix_trailing_slash_or_query(path: str) -> None:
    route = Route(INFERENCE_PATHS[path], path)
    double = path.replace("/", "//")
    for variant in (f"/team/llama{path}", f"{path}/", f"{path}?beta=true", f"{path}/?a=/x", double):
        assert match(variant) == route, variant
    assert match(f"/a/b/c/d//e{path}//?beta=true") == route


@pytest.mark.parametrize(
    "path",
    [
        *["", "/", "//", "*", "/v1", "/v1/", "/metrics", "/health", "/v1/chat", "/completions"],
        *["/v1/completionsx", "/xv1/completions", "/v1/Completions", "/v1/completions/x"],
        *["/v1/load_lora_adapter", "/sleep", "/collective_rpc", "/flush_cache", "/v1/models"],
        *["/v1/responses/a/b", "/v1/responses/a/cancel/b", "/v1/videos/a/b", "/responses/a"],
    ],
)
def test_other_paths_are_unknown(path: str) -> None:
    assert match(path) is None


@pytest.mark.parametrize("path", WITH_ID)
def test_id_of_a_stored_object_is_found(path: str) -> None:
    concrete = path.replace("*", "resp_1%2F2")
    route = Route(Api.BARE, path, "resp_1/2")
    for variant in (concrete, f"/team{concrete}", f"{concrete}/", f"{concrete}?stream=true"):
        assert match(variant, "GET") == route, variant
    assert match(path, "GET") == Route(Api.BARE, path, "*")


def test_longest_known_suffix_wins() -> None:
    assert match("/v1/responses/score") == Route(Api.BARE, "/v1/responses/*", "score")
    assert match("/v1/videos/sync") == Route(Api.FORM, "/v1/videos/sync")
    assert match("/v1/rerank") == Route(Api.MODEL_ONLY, "/v1/rerank")


@pytest.mark.parametrize("path", ["/v1/videos", "/v1/audio/voices", "/team/v1/videos/?limit=2"])
def test_get_of_a_list_needs_no_body(path: str) -> None:
    assert match(path, "GET").api is Api.BARE  # type: ignore[union-attr]
    assert match(path, "POST").api is Api.FORM  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/models", ""),
        ("/v1/models/", ""),
        ("/v1/models?limit=1000", ""),
        ("/team/v1/models", ""),
        ("/v1/models/llama", "llama"),
        ("/v1/models/meta-llama/Llama-3", "meta-llama/Llama-3"),
        ("/v1/models/meta-llama%2FLlama-3?x=y", "meta-llama/Llama-3"),
        ("/team//v1/models/a/b/c/d/score/", "a/b/c/d/score"),
        ("/v1/models/a/v1/models", "a/v1/models"),
    ],
)
def test_model_name_is_found_in_the_models_path(path: str, model: str) -> None:
    for method in ("GET", "HEAD"):
        assert match(path, method) == Route(Api.MODELS, "/v1/models", model)


@pytest.mark.parametrize("path", ["/v1/modelsx", "/v1/models-x/y", "/v2/models"])
def test_longer_segment_than_models_is_unknown(path: str) -> None:
    assert match(path, "GET") is None


def test_only_messages_paths_have_anthropics_errors() -> None:
    paths = {path for path in EXACT if match(path).is_anthropic}  # type: ignore[union-attr]
    assert paths == {"/v1/messages", "/v1/messages/count_tokens"}


@pytest.mark.parametrize(
    ("path", "model"),
    [
        ("/v1/realtime", ""),
        ("/v1/realtime?model=llama", "llama"),
        ("/v1/realtime?duplex=1&model=meta%2Fllama&model=b", "meta/llama"),
        ("/v1/realtime?model=", ""),
        ("/v1/realtime?xmodel=a", ""),
        ("/v1/realtime?x=" + "y" * 5000 + "&model=a", ""),
    ],
)
def test_model_is_found_in_the_query(path: str, model: str) -> None:
    assert model_in_query(path) == model


@pytest.mark.parametrize(
    ("path", "bare"),
    [
        ("/v1/completions", "/v1/completions"),
        ("/v1/completions?", "/v1/completions"),
        ("/v1/completions?a=b?c", "/v1/completions"),
        ("", ""),
    ],
)
def test_query_is_removed_from_the_path(path: str, bare: str) -> None:
    assert without_query(path) == bare


anything = st.text() | st.text("/?*%v1models", max_size=40)


@thorough
@given(anything, st.sampled_from(["GET", "POST", ""]))
@example("/" * 60_000 + "v1/completions", "POST")
@example("/v1/models/" * 5_000, "GET")
def test_every_match_is_a_known_path(path: str, method: str) -> None:
    route = match(path, method)
    assert route is None or route.path in {*INFERENCE_PATHS, "/v1/models"}
    model_in_query(path)


@thorough
@given(st.text(st.characters(exclude_characters="?/")).filter(bool), st.sampled_from(WITH_ID))
def test_any_segment_can_be_an_id(segment: str, path: str) -> None:
    concrete = path.replace("*", segment)
    assume(concrete not in INFERENCE_PATHS or concrete == path)
    assert match(concrete, "GET") == Route(Api.BARE, path, unquote(segment))
