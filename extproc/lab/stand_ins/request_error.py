"""Errors of requests, with vLLM's messages."""

from __future__ import annotations


class RequestError(Exception):
    """An error response to a request; `kind` and `param` are fields of OpenAI's error shape."""

    def __init__(self, status: int, kind: str, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
