"""Decoding of the peer's header blocks, with caches.

Our SETTINGS leave the peer no dynamic table. After it has acknowledged them, and its next
block has confirmed that, the meaning of a block depends on its bytes only. Envoy's blocks are
the same for stream after stream, so we keep a few of them decoded. With tracing, one field of each
block is new, so we also keep single fields: decoding a whole block takes as long as the
rest of a request. All other blocks go through the hpack library.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from hpack import Decoder, HPACKError, OversizedHeaderListError

from extproc.edge.http2 import fields
from extproc.edge.http2.errors import COMPRESSION_ERROR, ENHANCE_YOUR_CALM, ConnectionFault
from extproc.edge.http2.events import Headers
from extproc.edge.http2.limits import FIELDS_PER_TOKEN, Budget, Limits
from extproc.edge.http2.splitting import after_updates, split

_KEPT = 64
"""Cached blocks. When the cache is full, all of it is dropped."""
_KEPT_SIZE = 4_096
"""Bytes of the longest cached block."""
_KEPT_FIELDS = 256
"""Cached fields."""
_KEPT_FIELD_SIZE = 256
"""Bytes of the longest cached field."""

_EXPANSION = 8_192
"""Bytes that a decoded block may have beyond twice its encoded size. Huffman coding at most doubles
the size. The rest is for references: a hundred to the static table, and a whole dynamic table."""

Field = tuple[bytes, bytes]


class HeaderDecoder:
    """The decoder of one connection: a block may refer to the blocks before it."""

    def __init__(self, limits: Limits, budget: Budget) -> None:
        self._longest = limits.header_block
        self._decoder = Decoder(max_header_list_size=limits.header_list)
        self._fields: dict[bytes, Field] = {}
        self._list_limit = limits.header_list
        self._most_fields = limits.header_fields
        self._budget = budget
        self.requests: dict[bytes, Headers] = {}
        """Cached requests by block. The caller looks here first, which saves a call."""

    def acknowledged(self) -> None:
        """Expect no dynamic table from now on: the peer has applied our SETTINGS."""
        self._decoder.max_allowed_table_size = 0

    def request(self, block: bytes) -> Headers | None:
        """Return the headers of a request, or None if it is malformed.

        Raises ConnectionFault for a block that cannot be decoded, as later blocks may refer to it.
        """
        timeless = self._timeless(block)
        decoded = self._by_field(block) if timeless else None
        headers = fields.request(self._decoded(block) if decoded is None else decoded)
        if headers is not None and timeless:
            if len(self.requests) >= _KEPT:
                self.requests.clear()
            self.requests[block] = headers
        return headers

    def trailers(self, block: bytes) -> bool:
        """Decode trailers. Return True if they are well-formed. Raises ConnectionFault as above."""
        return fields.trailers(self._decoded(block))

    def _decoded(self, block: bytes) -> Iterable[tuple[bytes, bytes]]:
        if len(block) > self._longest:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "header block too long")
        try:
            # Count first: decoding takes microseconds for each field, and a field may be one byte.
            self._pieces(block, after_updates(block))
            self._decoder.max_header_list_size = min(self._list_limit, 2 * len(block) + _EXPANSION)
            return self._decoder.decode(block, raw=True)
        except OversizedHeaderListError:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "header list too large") from None
        except (ValueError, HPACKError):
            raise ConnectionFault(COMPRESSION_ERROR, "header block not decodable") from None

    def _pieces(self, block: bytes, at: int) -> list[bytes]:
        """Return the encoded fields, and take the tokens for decoding them.

        Raises ConnectionFault if there are too many fields, or ValueError for a malformed block.
        """
        pieces = list(islice(split(block, at), self._most_fields + 1))
        if len(pieces) > self._most_fields:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "too many header fields")
        tokens = len(pieces) // FIELDS_PER_TOKEN
        if tokens:
            self._budget.spend(tokens)
        return pieces

    def _by_field(self, block: bytes) -> list[Field] | None:
        """Decode a timeless block from cached fields. Return None if it is malformed."""
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
        """Return True if the meaning of a block does not depend on earlier blocks."""
        if self._decoder.max_allowed_table_size or len(block) > _KEPT_SIZE:
            return False
        return bool(block) and block[0] & 0xE0 != 0x20
