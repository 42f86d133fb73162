"""What can go wrong between us and the API server."""

from __future__ import annotations


class KubernetesError(Exception):
    """The API server did not give what was asked for; the message is one line."""


class Unreachable(KubernetesError):
    """No whole answer came."""


class Garbled(KubernetesError):
    """The answer is not what the API promises."""


class Refusal(KubernetesError):
    """The API server's own word, with its status code."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code} {message}")
        self.code = code
