"""Header blocks of ours: no state, no Huffman code, so they can be made once and sent often.

Fields are literals without indexing, or one byte where HPACK's static table has name and
value. The first block on a connection says that our table has size 0, so no change
that the peer wishes for its size ever concerns us.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hpack.hpack import encode_integer
from hpack.table import HeaderTable

NO_TABLE: Final = b"\x20"
"""The size update that our first block begins with."""

_INDEXED = 0x80


def encode_headers(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The header block of these fields, whose names are in lower case."""
    return b"".join(_encoded(name, value) for name, value in pairs)


def _encoded(name: bytes, value: bytes) -> bytes:
    index, values = HeaderTable.STATIC_TABLE_MAPPING.get(name, (0, {}))
    if value in values:
        return _integer(values[value], 7, _INDEXED)
    return _integer(index, 4) + (b"" if index else _string(name)) + _string(value)


def _string(text: bytes) -> bytes:
    return _integer(len(text), 7) + text


def _integer(number: int, bits: int, marks: int = 0) -> bytes:
    encoded = encode_integer(number, bits)
    encoded[0] |= marks
    return bytes(encoded)
