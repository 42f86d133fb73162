"""Header blocks of the peer.

Our SETTINGS leave the peer no table to refer to. Once it has acknowledged them, and its first
block afterwards has said so, what a block means is a function of its bytes, and Envoy's
blocks are the same for stream after stream: a few are kept with what they mean. With tracing
on one field of a block is always new, so fields are kept, too: to decode a whole block takes
as long as all the rest of a request. Before that, and for whatever is not kept, there is the
real decoder.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from hpack import Decoder, HPACKError, OversizedHeaderListError

from extproc.edge.http2 import fields
from extproc.edge.http2.errors import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from extproc.edge.http2.events import Headers
from extproc.edge.http2.limits import Limits
from extproc.edge.http2.splitting import after_updates, split

_KEPT = 64
"""Blocks that are kept. A peer that never repeats itself only has them thrown away each time."""
_KEPT_SIZE = 4_096
"""Bytes of the longest one."""
_KEPT_FIELDS = 256
_KEPT_FIELD_SIZE = 256
"""Bytes of the longest one."""

_EXPANSION = 8_192
"""Bytes that a decoded block may have beyond twice its encoded size. Huffman's code is at most that
dense; the rest is for references: a hundred to the static table, and a whole dynamic one."""

Field = tuple[bytes, bytes]


class HeaderDecoder:
    """One for a connection, as the blocks before are part of what a block means."""

    def __init__(self, limits: Limits) -> None:
        self._longest = limits.header_block
        self._decoder = Decoder(max_header_list_size=limits.header_list)
        self._fields: dict[bytes, Field] = {}
        self._list_limit = limits.header_list
        self._most_fields = limits.header_fields
        self.fields = 0
        """Fields of the last block that had to be decoded."""
        self.kept: dict[bytes, Headers] = {}
        """Requests by their blocks: the caller looks here first, and saves a call."""

    def acknowledged(self) -> None:
        """The peer has read our SETTINGS: its next block must do without a table."""
        self._decoder.max_allowed_table_size = 0

    def request(self, block: bytes) -> Headers | None:
        """The headers of a request; None if it is malformed.

        Raises ConnectionFault for a block that cannot be decoded: nothing after it could.
        """
        timeless = self._timeless(block)
        decoded = self._by_field(block) if timeless else None
        headers = fields.request(self._decoded(block) if decoded is None else decoded)
        if headers is not None and timeless:
            if len(self.kept) >= _KEPT:
                self.kept.clear()
            self.kept[block] = headers
        return headers

    def trailers(self, block: bytes) -> bool:
        """Whether these are well-formed trailers. Raises ConnectionFault, as above."""
        return fields.trailers(self._decoded(block))

    def _decoded(self, block: bytes) -> Iterable[tuple[bytes, bytes]]:
        if len(block) > self._longest:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "header block too long")
        try:
            # Counted first: the decoder takes microseconds for each field, which may be one byte.
            self._pieces(block, after_updates(block))
            self._decoder.max_header_list_size = min(self._list_limit, 2 * len(block) + _EXPANSION)
            return self._decoder.decode(block, raw=True)
        except OversizedHeaderListError:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "header list too large") from None
        except (ValueError, HPACKError):
            raise ConnectionFault(COMPRESSION_ERROR, "header block not decodable") from None

    def _pieces(self, block: bytes, at: int) -> list[bytes]:
        """The encoded fields. Raises ConnectionFault if there are too many, or ValueError."""
        pieces = list(islice(split(block, at), self._most_fields + 1))
        self.fields = len(pieces)
        if self.fields > self._most_fields:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many header fields")
        return pieces

    def _by_field(self, block: bytes) -> list[Field] | None:
        """The fields of a block that will always mean the same; None if it is not sound."""
        try:
            found = [self._field(piece) for piece in self._pieces(block, 0)]
        except (ValueError, HPACKError):
            return None
        size = sum(len(name) + len(value) + 32 for name, value in found)
        return found if size <= self._list_limit else None

    def _field(self, piece: bytes) -> Field:
        field = self._fields.get(piece)
        if field is None:
            self._decoder.max_header_list_size = self._list_limit
            ((name, value),) = self._decoder.decode(piece, raw=True)
            field = name, value
            if len(piece) <= _KEPT_FIELD_SIZE:
                if len(self._fields) >= _KEPT_FIELDS:
                    self._fields.clear()
                self._fields[piece] = field
        return field

    def _timeless(self, block: bytes) -> bool:
        """Whether it will always mean the same, and is no change of the table's size."""
        if self._decoder.max_allowed_table_size or len(block) > _KEPT_SIZE:
            return False
        return bool(block) and block[0] & 0xE0 != 0x20
