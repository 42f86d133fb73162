"""The address of an OTLP receiver."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import Literal
from urllib.parse import urlsplit

_GRPC_PORT = 4317
"""The port for OTLP over gRPC at the IANA. An http(s) URL with this port means gRPC."""
_HTTP_PORT = 4318
_GRPC_SCHEMES = {"grpc": "http", "grpcs": "https"}
_TRACES_PATH = "/v1/traces"


@dataclass(frozen=True)
class OtlpEndpoint:
    """A receiver of traces."""

    protocol: Literal["grpc", "http"]
    url: str
    """The URL for the exporter: http or https, and the path of the traces if it is HTTP."""

    def is_installed(self) -> bool:
        """Return True if the packages of the extra `otel` are installed."""
        names = ("opentelemetry.sdk", f"opentelemetry.exporter.otlp.proto.{self.protocol}")
        try:
            return all(find_spec(name) is not None for name in names)
        except ModuleNotFoundError:  # a parent package is missing
            return False


def otlp_endpoint(text: str) -> OtlpEndpoint:
    """Return the endpoint of a URL.

    `grpc://` and `grpcs://` mean OTLP over gRPC, and so do `http://` and `https://` with port 4317.
    Any other `http://` or `https://` means OTLP over HTTP. Raises ValueError.
    """
    parts = urlsplit(text)
    if (
        not parts.hostname
        or parts.port == 0
        or parts.scheme not in ("http", "https", *_GRPC_SCHEMES)
    ):
        raise ValueError(text)
    if parts.query or parts.fragment:
        raise ValueError(text)
    path = parts.path.rstrip("/")
    if parts.scheme in _GRPC_SCHEMES or (parts.port == _GRPC_PORT and not path):
        if path:
            raise ValueError(text)
        scheme = _GRPC_SCHEMES.get(parts.scheme, parts.scheme)
        netloc = parts.netloc if parts.port else f"{parts.netloc.removesuffix(':')}:{_GRPC_PORT}"
        return OtlpEndpoint("grpc", f"{scheme}://{netloc}")
    netloc = parts.netloc
    if parts.scheme == "http" and parts.port is None:
        netloc = f"{netloc.removesuffix(':')}:{_HTTP_PORT}"
    return OtlpEndpoint("http", f"{parts.scheme}://{netloc}{path or _TRACES_PATH}")
