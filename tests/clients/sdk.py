"""Official SDKs that are pointed at a scene's Envoy, and what their responses reveal."""

from __future__ import annotations

import asyncio
import base64
import random
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any, TypeVar

import anthropic
import openai

from tests.e2e.scene import MODEL, Scene

T = TypeVar("T")
Json = dict[str, Any]

FAST = ("--time-scale", "200", "--kv-tokens", "4000000", "--max-model-len", "4000000")
"""Replicas that take prompts of megabytes in milliseconds."""

ARTICLE = "The quick brown fox jumps over the lazy dog, again and again, all day long. " * 60
"""A text that fills many blocks of a prefix cache."""


def client(scene: Scene, **options: Any) -> openai.OpenAI:
    """OpenAI's SDK."""
    return openai.OpenAI(**_options(scene, "/v1", options))


def async_client(scene: Scene, **options: Any) -> openai.AsyncOpenAI:
    """OpenAI's SDK for asyncio."""
    return openai.AsyncOpenAI(**_options(scene, "/v1", options))


def claude(scene: Scene, **options: Any) -> anthropic.Anthropic:
    """Anthropic's SDK."""
    return anthropic.Anthropic(**_options(scene, "", options))


def _options(scene: Scene, path: str, options: Mapping[str, Any]) -> dict[str, Any]:
    prefix = options.get("prefix", "")
    more = {name: value for name, value in options.items() if name != "prefix"}
    base_url = scene.envoy.url + prefix + path
    return {"base_url": base_url, "api_key": "none", "max_retries": 0, **more}


def user(text: str) -> Any:
    """The messages of a conversation with one turn."""
    return [{"role": "user", "content": text}]


def asked(text: str, tokens: int = 4, **more: Any) -> Json:
    """Arguments of a chat completion or a message."""
    return {"model": MODEL, "messages": user(text), "max_tokens": tokens, **more}


def with_image(data_bytes: int, seed: int = 0) -> Any:
    """The messages of a question about an image of this size before it is encoded."""
    pixels = base64.b64encode(random.Random(seed).randbytes(data_bytes)).decode()
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{pixels}"}}
    question = {"type": "text", "text": "What is in this image?"}
    return [{"role": "user", "content": [image, question]}]


def port_of(response: Any) -> str:
    """The replica that answered a raw response."""
    port: str = response.headers["x-stand-in-port"]
    return port


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of what a scene tells asynchronously."""
    return asyncio.run(coroutine)


def arrived(scene: Scene) -> int:
    """Requests that replicas have received so far."""
    return sum(entry["total"] for entry in run(scene.replicas.requests()).values())


def joined(deltas: Iterable[str | None]) -> str:
    """The text of a stream."""
    return "".join(delta or "" for delta in deltas)
