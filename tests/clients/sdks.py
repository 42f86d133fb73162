"""The official SDKs, imported at their first use.

They take six seconds to import. Each process of a test run collects all tests, but only one runs
those with an SDK.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anthropic as anthropic
    import langchain_anthropic as langchain_anthropic
    import langchain_openai as langchain_openai
    import litellm as litellm
    import openai as openai


_NAMES = (
    "anthropic",
    "langchain_anthropic",
    "langchain_core",
    "langchain_openai",
    "litellm",
    "openai",
)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(name)
    return import_module(name)
