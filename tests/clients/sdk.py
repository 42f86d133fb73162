"""Official SDKs connected to a scene's Envoy, and helpers to read their responses."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

from tests.clients import sdks
from tests.e2e.scene import MODEL, Scene

T = TypeVar("T")
Json = dict[str, Any]

FAST = ("--time-scale", "200", "--kv-tokens", "4000000", "--max-model-len", "4000000")
"""Options of replicas that process prompts of megabytes in milliseconds."""

ARTICLE = "The quick brown fox jumps over the lazy dog, again and again, all day long. " * 60
"""A text of many blocks of a prefix cache."""


def client(scene: Scene, **options: Any) -> sdks.openai.OpenAI:
    """Return OpenAI's SDK."""
    return sdks.openai.OpenAI(**_options(scene, "/v1", options))


def async_client(scene: Scene, **options: Any) -> sdks.openai.AsyncOpenAI:
    """Return OpenAI's SDK for asyncio."""
    return sdks.openai.AsyncOpenAI(**_options(scene, "/v1", options))


def claude(scene: Scene, **options: Any) -> sdks.anthropic.Anthropic:
    """Return Anthropic's SDK."""
    return sdks.anthropic.Anthropic(**_options(scene, "", options))


def _options(scene: Scene, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    prefix = options.get("prefix", "")
    more = {name: value for name, value in options.items() if name != "prefix"}
    base_url = scene.envoy.url + prefix + path
    return {"base_url": base_url, "api_key": "none", "max_retries": 0, **more}


def user(text: str) -> Any:
    """Return the messages of a conversation with one turn."""
    return [{"role": "user", "content": text}]


def asked(text: str, tokens: int = 4, **more: Any) -> Json:
    """Return the arguments of a chat completion or a message."""
    return {"model": MODEL, "messages": user(text), "max_tokens": tokens, **more}


def with_image(data_bytes: int, seed: int = 0) -> Any:
    """Return a question about an image that has `data_bytes` bytes before base64."""
    pixels = base64.b64encode(random.Random(seed).randbytes(data_bytes)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixels}"}}
    question = {"type": "text", "text": "What is in this image?"}
    return [{"role": "user", "content": [image, question]}]


def port_of(response: Any) -> str:
    """Return the port of the replica that sent a raw response."""
    port: str = response.headers["x-stand-in-port"]
    return port


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of a scene and return its result."""
    return asyncio.run(coroutine)


def arrived(scene: Scene) -> int:
    """Return the number of requests that the replicas have received so far."""
    return sum(entry["total"] for entry in run(scene.replicas.requests()).values())


def joined(deltas: Iterable[str | None]) -> str:
    """Return the text of a stream."""
    return "".join(delta or "" for delta in deltas)
