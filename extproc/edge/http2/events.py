"""What a connection tells of its streams.

Of each stream: one Opened, any number of Data, then at most one Ended and at most one Reset,
and nothing after a Reset. Nothing at all is told of a stream once we have ended it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Headers = Mapping[bytes, bytes]
"""Names in lower case, pseudo-header fields among them; immutable. What came several times
under one name is joined by commas (RFC 9110, section 5.3)."""


class Opened(NamedTuple):
    """A request has begun."""

    stream: int
    headers: Headers
    end_stream: bool
    """Whether that was all of it: then Ended follows at once."""


class Data(NamedTuple):
    """A piece of a request's body; its size is to be given back with `consumed`."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The peer has sent all that it wants to send."""

    stream: int


class Reset(NamedTuple):
    """The peer, or the end of the connection, has broken the stream off."""

    stream: int
    code: int


Event = Opened | Data | Ended | Reset
