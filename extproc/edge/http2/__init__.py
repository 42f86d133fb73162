"""The server's side of HTTP/2 (RFC 9113), made for gRPC streams over plaintext.

Sans-IO: `Http2Connection` turns bytes into events, and answers into bytes. Clients speak HTTP/2 at
once, by prior knowledge.
"""

from __future__ import annotations

from extproc.edge.http2 import errors
from extproc.edge.http2.connection import Http2Connection
from extproc.edge.http2.encoding import encode_headers
from extproc.edge.http2.events import Data, Ended, Event, Headers, Opened, Reset
from extproc.edge.http2.limits import LIMITS, Limits

__all__ = [
    "LIMITS",
    "Data",
    "Ended",
    "Event",
    "Headers",
    "Http2Connection",
    "Limits",
    "Opened",
    "Reset",
    "encode_headers",
    "errors",
]
