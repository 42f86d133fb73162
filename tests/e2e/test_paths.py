"""Paths, models and errors, from a client's view through real Envoy."""

from __future__ import annotations

import json

import pytest

from extproc.core.request.paths import INFERENCE_PATHS, Api
from tests.e2e.scene import (
    CHAT,
    EXT_PROC,
    HttpResponse,
    Json,
    Launch,
    Options,
    chat,
    ext_proc_filter,
    manager_of,
    show_bodies,
)

NOT_IN_OUR_ROUTES = {
    # WebSockets: Envoy upgrades a connection only if its operator allows it.
    *("/v1/realtime", "/v1/realtime/video", "/v1/realtime/robot/openpi", "/v1/duplex"),
    *("/v1/audio/speech/stream", "/v1/video/chat/stream"),
    # Rare paths: by default, Envoy accepts no longer pattern.
    *("/api/chat", "/vertex_generate", "/v1/decisions"),
}
OTHER: Json = {"name": "qwen", "endpoints": ["127.0.0.1:9"], "aliases": ["meta-llama/Llama-3"]}
ANTHROPIC = {"anthropic-version": "2023-06-01"}


async def test_every_inference_path_reaches_a_replica(launch: Launch) -> None:
    scene = await launch(Options(replicas=1))
    replica = scene.replicas.addresses[0]
    paths = {path: api for path, api in INFERENCE_PATHS.items() if path not in NOT_IN_OUR_ROUTES}
    unreached = []
    for path, api in paths.items():
        body = b"" if api is Api.BARE else json.dumps(chat("hello", prompt="hello")).encode()
        headers = {"content-type": "application/json"}
        reply = await scene.send(body, path=path.replace("*", "id_1"), headers=headers)
        # Any response will do: this test checks only that the request reached the replica.
        if reply.headers.get("x-stand-in-port") != replica.rpartition(":")[2]:
            unreached.append((path, reply.status, reply.body))
    assert unreached == []
    lines = await scene.access_log(len(paths))
    assert {line["endpoint"] for line in lines} == {replica}


@pytest.mark.parametrize(
    "path",
    [
        *[f"/team/llama{CHAT}", f"{CHAT}/", f"{CHAT}?beta=true", f"/team/{CHAT}"],
        "/team/rerank?x=y",
    ],
)
async def test_a_path_below_a_prefix_is_routed(launch: Launch, path: str) -> None:
    scene = await launch()
    await scene.send(chat("hello"), path=path)
    (line,) = await scene.access_log(1)
    assert (line["status"], line["model"]) == (200, "llama")
    assert line["endpoint"] == line["upstream"]


async def test_stored_responses_are_requested_without_a_body(launch: Launch) -> None:
    scene = await launch(Options(replicas=1, more_models=[OTHER]))
    for method, path, headers in (
        ("GET", "/v1/responses/resp_1?model=llama", {}),
        ("DELETE", "/v1/responses/resp_1", {"x-model": "llama"}),
    ):
        await scene.send(b"", method=method, path=path, headers=headers)
    lines = await scene.access_log(2)
    assert {line["endpoint"] for line in lines} == set(scene.replicas.addresses)
    reply = await scene.send(b"", method="GET", path="/v1/responses/resp_1")
    assert (reply.status, reply.error()["code"]) == (400, "invalid_request")
    assert "'x-model'" in reply.error()["message"]


async def test_a_request_without_a_model_goes_to_the_only_model(launch: Launch) -> None:
    scene = await launch(Options(replicas=1))
    for size in (10, 140_000):
        reply = await scene.send({"input": "x" * size}, path="/v1/embeddings")
        assert (reply.status, reply.replica) == (200, scene.replicas.addresses[0])
    lines = await scene.access_log(2)
    assert {line["model"] for line in lines} == {"llama"}


async def test_the_error_for_a_missing_model_lists_the_known_models(
    launch: Launch,
) -> None:
    scene = await launch(Options(more_models=[OTHER]))
    body = {"messages": [{"role": "user", "content": "x" * 140_000}]}
    error = (await scene.send(body)).error()
    assert error["code"] == "invalid_request"
    assert "'x-model'" in error["message"]
    assert "Known models: llama, meta-llama/Llama-3, qwen." in error["message"]


async def test_errors_for_anthropic_clients_have_the_anthropic_shape_and_the_request_id(
    launch: Launch,
) -> None:
    scene = await launch()
    for path in ("/v1/messages", "/team/v1/messages/count_tokens?beta=true"):
        reply = await scene.send(chat("hello", model="gpt"), path=path, headers=ANTHROPIC)
        assert reply.status == 404
        response = reply.json()
        assert (response["type"], response["error"]["type"]) == ("error", "not_found_error")
        assert (
            response["request_id"] == reply.headers["x-request-id"] == reply.headers["request-id"]
        )
    lines = await scene.access_log(2)
    assert lines[-1]["request_id"] == response["request_id"]
    assert f"request_id={response['request_id']}" in scene.sidecar.error_output()


async def test_client_and_access_log_have_the_same_request_id(
    launch: Launch,
) -> None:
    scene = await launch()
    reply = await scene.send(chat("hello", model="gpt"))
    (line,) = await scene.access_log(1)
    ids = reply.json()["request_id"], reply.headers["x-request-id"], line["request_id"]
    assert len(set(ids)) == 1
    assert len(ids[0]) == 36


async def test_each_model_can_be_retrieved(launch: Launch) -> None:
    scene = await launch(Options(more_models=[OTHER]))

    async def get(name: str, method: str = "GET", **headers: str) -> HttpResponse:
        return await scene.send(b"", path=f"/v1/models/{name}", method=method, headers=headers)

    for name in ("meta-llama/Llama-3", "meta-llama%2FLlama-3"):
        reply = await get(name)
        assert (reply.status, reply.json()["id"]) == (200, "meta-llama/Llama-3")
    missing = await get("gpt")
    assert (missing.status, missing.error()["code"]) == (404, "model_not_found")
    head = await get("llama", "HEAD")
    assert (head.status, head.body) == (200, b"")
    assert (await get("llama", **ANTHROPIC)).json()["type"] == "model"
    page = await scene.send(b"", path="/v1/models?limit=1000", method="GET", headers=ANTHROPIC)
    assert page.json()["first_id"] == "llama"


async def test_the_model_list_has_the_context_length_of_the_servers(
    launch: Launch,
) -> None:
    arguments = ("--max-model-len", "4321")
    scene = await launch(Options(strategy="LeastQueue", replica_arguments=arguments))
    listed = (await scene.send(b"", path="/v1/models", method="GET")).json()["data"]
    assert [(entry["id"], entry["max_model_len"]) for entry in listed] == [("llama", 4321)]


def everywhere(config: Json) -> None:
    """Run ext_proc on all routes, and add a last route for requests without a model."""
    for one in manager_of(config)["http_filters"]:
        if one["name"] == EXT_PROC:
            one.pop("disabled", None)
    # The sidecar must then remove the headers that a client sends.
    del manager_of(config)["early_header_mutation_extensions"]
    hosts = manager_of(config)["route_config"]["virtual_hosts"]
    hosts[0]["routes"].append(
        {"name": "app", "match": {"prefix": "/"}, "route": {"cluster": "fallback"}}
    )


def buffered(config: Json) -> None:
    everywhere(config)
    show_bodies(config, "BUFFERED_PARTIAL")


def streamed_back(config: Json) -> None:
    everywhere(config)
    show_bodies(config, "FULL_DUPLEX_STREAMED")
    filtered = ext_proc_filter(config)
    filtered["processing_mode"]["response_body_mode"] = "FULL_DUPLEX_STREAMED"
    filtered["processing_mode"]["request_trailer_mode"] = "SEND"
    filtered["processing_mode"]["response_trailer_mode"] = "SEND"


def without_bodies(config: Json) -> None:
    everywhere(config)
    show_bodies(config, "NONE")


@pytest.mark.parametrize("change", [everywhere, buffered, streamed_back, without_bodies])
async def test_an_unknown_path_passes_in_every_body_mode(launch: Launch, change: object) -> None:
    assert callable(change)
    scene = await launch(
        Options(change_config=change, sidecar_arguments=("--unknown-paths", "pass"))
    )
    evil = {"x-target-endpoint": "127.0.0.1:9", "x-gateway-destination-endpoint": "127.0.0.1:9"}
    for headers in ({}, evil):
        for size in (0, 10, 40_000, 200_000, 1_500_000):
            body = b"x" * size
            reply = await scene.send(body, path="/app/upload", headers=headers)
            assert reply.status == 200
            assert (reply.json()["path"], reply.json()["bytes"]) == ("/app/upload", size)
    lines = await scene.access_log(10)
    assert {(line["route"], line["endpoint"]) for line in lines} == {("app", None)}
    labels = {"model": "unknown", "strategy": "none", "outcome": "passed"}
    assert await scene.metric("extproc_requests_total", **labels) == 10


async def test_an_unknown_path_is_refused_by_default(launch: Launch) -> None:
    scene = await launch(Options(change_config=everywhere))
    reply = await scene.send(b"{}", path="/app")
    assert (reply.status, reply.error()["code"]) == (404, "unknown_path")
