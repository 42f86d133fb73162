"""`extproc explain` tells what the sidecar does behind the recommended Envoy configuration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.adapters.configuration.document import parse
from extproc.explain import WHOLE_BYTES, explain, shown
from tests.e2e.scene import CHAT, Launch, Options

QWEN = {"name": "qwen", "endpoints": ["10.0.0.1:8000"]}


def body_of(size: int) -> bytes:
    """A chat request of so many bytes that names its model last, as many clients do."""
    request: dict[str, Any] = {"messages": [{"role": "user", "content": ""}], "max_tokens": 1}
    request["model"] = "llama"
    request["messages"][0]["content"] = "x" * (size - len(json.dumps(request)))
    return json.dumps(request).encode()


@pytest.mark.parametrize("size", [200_000, WHOLE_BYTES, WHOLE_BYTES + 1])
async def test_a_body_is_explained_as_it_is_routed(size: int, launch: Launch) -> None:
    options = Options(more_models=[QWEN], replica_arguments=("--max-model-len", "9000000"))
    scene = await launch(options)
    body, headers = body_of(size), {"content-type": "application/json"}
    assert len(body) == size
    told = explain(
        parse(json.dumps(options.models(scene.replicas.addresses)).encode()),
        shown(body),
        length=size,
        path=CHAT,
        headers=headers,
        inflight={},
    )
    reply = await scene.send(body, headers=headers)
    if told.error is not None:
        assert size > WHOLE_BYTES
        assert (reply.status, reply.error()["code"]) == (told.error["status"], told.error["code"])
        assert reply.error()["message"] == told.error["message"]
    else:
        assert size <= WHOLE_BYTES
        assert reply.replica == told.endpoint
