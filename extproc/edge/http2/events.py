"""The events of a connection.

Each stream has one Opened, any number of Data, then at most one Ended and at most one Reset.
No event follows a Reset, and none follows our own end of the stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Headers = Mapping[bytes, bytes]
"""Values by lower-case name, with the pseudo-header fields; immutable. Several values of one name
are joined by commas (RFC 9110, section 5.3)."""


class Opened(NamedTuple):
    """The beginning of a request."""

    stream: int
    headers: Headers


class Data(NamedTuple):
    """A piece of a request's body. Pass its size to `ReceiveWindows.consumed` or `keep`."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The end of a request: the peer has sent END_STREAM."""

    stream: int


class Reset(NamedTuple):
    """The reset of a stream by the peer, or by the end of the connection."""

    stream: int
    code: int


Event = Opened | Data | Ended | Reset
