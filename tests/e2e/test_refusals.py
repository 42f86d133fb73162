"""Each refusal of the contract, which the client receives as an OpenAI error."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from extproc.lab.stack.processes import until
from tests.e2e.scene import CHAT, CONFIGS, HttpResponse, Launch, Options, chat, envoy_minor
from tests.extent import PATIENCE

INVALID_BODIES = {
    "not JSON": b"hello",
    "no object": b"[1, 2]",
    "model of a wrong type": b'{"model": 7}',
    "empty model": b'{"model": ""}',
    "cut short": b'{"model": "llama", "messages": [',
    "deep nesting": b'{"model": "llama", "a": ' + b"[" * 20_000,
    "endless number": b'{"model": "llama", "n": ' + b"9" * 5_000 + b"}",
    "bad UTF-8": b'{"model": "llama", "a": "\xff"}',
    "empty": b"",
}


def assert_refused(reply: HttpResponse, status: int, code: str) -> None:
    assert reply.status == status
    assert reply.headers["content-type"] == "application/json"
    assert reply.error()["code"] == code


async def test_invalid_bodies_return_400(launch: Launch) -> None:
    scene = await launch()
    for name, body in INVALID_BODIES.items():
        reply = await scene.send(body)
        assert_refused(reply, 400, "invalid_request")
        assert reply.error()["message"], name
    assert sum(entry["total"] for entry in (await scene.replicas.requests()).values()) == 0


async def test_an_unknown_model_returns_404_with_the_known_models(launch: Launch) -> None:
    scene = await launch()
    reply = await scene.send(chat("hello", model="gpt-9"))
    assert_refused(reply, 404, "model_not_found")
    assert "llama" in reply.error()["message"]


@pytest.mark.parametrize("path", ["/", "/v1/chat/completionsx", "/metrics", "/v1/models/llama"])
async def test_an_unknown_path_returns_404(launch: Launch, path: str) -> None:
    scene = await launch()
    assert_refused(await scene.send(chat("hello"), path=path), 404, "unknown_path")


CRASHING_MINOR = 37
MANY = {f"y-{number}": "a" for number in range(91)}
LARGE = {f"y-{number}": "a" * 7_630 for number in range(8)}


@pytest.mark.parametrize("config", [*CONFIGS, "endpoint-picker.yaml"])
@pytest.mark.parametrize("headers", [MANY, LARGE], ids=["many", "large"])
async def test_headers_that_leave_no_space_for_the_sidecars_return_431(
    launch: Launch, every_envoy: str, config: str, headers: Mapping[str, str]
) -> None:
    """Send headers within Envoy's limits, which the sidecar's headers then exceed."""
    if envoy_minor() == CRASHING_MINOR:
        pytest.skip("Envoy 1.37.0 crashes")
    scene = await launch(Options(replicas=2, config=config))
    fewer = dict(list(headers.items())[: len(headers) * 7 // 8])
    assert (await scene.send(chat("hello"), headers=fewer)).status == 200
    reply = await scene.send(chat("hello"), headers=headers)
    assert (reply.status, reply.headers["content-type"]) == (431, "application/json")
    assert reply.json()["error"]["code"] == "request_headers_too_large"
    await scene.agree_on_inflight(0)


async def test_each_refusal_is_one_log_line_without_the_prompt(launch: Launch) -> None:
    scene = await launch()
    secret = "my secret diagnosis"
    await scene.send({"model": 7, "messages": [{"role": "user", "content": secret}]})
    await scene.send(chat(secret, model="line\nbreak"))

    def lines() -> list[str]:
        return [line for line in scene.sidecar.error_output().splitlines() if "refused" in line]

    await until(lambda: len(lines()) >= 2, PATIENCE, "the log lines")
    assert len(lines()) == 2
    assert secret not in scene.sidecar.error_output()


async def test_the_sidecar_lists_the_models(launch: Launch) -> None:
    scene = await launch(Options(adapters=["sql-lora"]))
    reply = await scene.send(b"", method="GET", path="/v1/models")
    assert reply.status == 200
    assert reply.headers["content-type"] == "application/json"
    listing = reply.json()
    assert listing["object"] == "list"
    assert [entry["id"] for entry in listing["data"]] == ["llama", "sql-lora"]


async def test_a_request_without_a_body_is_refused_at_its_headers(launch: Launch) -> None:
    scene = await launch()
    assert_refused(await scene.send(b"", path=CHAT), 400, "invalid_request")
    assert_refused(await scene.send(b"", path=CHAT, method="GET"), 400, "invalid_request")
