"""Requests that a stand-in refuses, in vLLM's words."""

from __future__ import annotations


class RequestError(Exception):
    """The message is for the client; `kind` and `param` are of OpenAI's error shape."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
