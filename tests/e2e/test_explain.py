"""`extproc explain` predicts the sidecar's decision behind the recommended Envoy configuration."""

from __future__ import annotations

import json
from typing import Any

import pytest

from extproc.adapters.configuration.document import parse
from extproc.explain import WHOLE_BYTES, explain, shown
from tests.e2e.scene import CHAT, Launch, Options

QWEN = {"name": "qwen", "endpoints": ["10.0.0.1:8000"]}


def body_of(size: int) -> bytes:
    """Return a chat request of this size with the model as its last field, as many clients send."""
    request: dict[str, Any] = {"messages": [{"role": "user", "content": ""}], "max_tokens": 1}
    request["model"] = "llama"
    request["messages"][0]["content"] = "x" * (size - len(json.dumps(request)))
    return json.dumps(request).encode()


@pytest.mark.parametrize("size", [200_000, WHOLE_BYTES, WHOLE_BYTES + 1])
async def test_explanation_matches_the_routing(size: int, launch: Launch) -> None:
    options = Options(more_models=[QWEN], replica_arguments=("--max-model-len", "9000000"))
    scene = await launch(options)
    body, headers = body_of(size), {"content-type": "application/json"}
    assert len(body) == size
    explanation = explain(
        parse(json.dumps(options.models(scene.replicas.addresses)).encode()),
        shown(body),
        length=size,
        path=CHAT,
        headers=headers,
        inflight={},
    )
    reply = await scene.send(body, headers=headers)
    if explanation.error is not None:
        assert size > WHOLE_BYTES
        assert (reply.status, reply.error()["code"]) == (
            explanation.error["status"],
            explanation.error["code"],
        )
        assert reply.error()["message"] == explanation.error["message"]
    else:
        assert size <= WHOLE_BYTES
        assert reply.replica == explanation.endpoint
