"""Encodes our header blocks, without state: a block can be encoded once and sent often.

Fields are literals without indexing and without Huffman coding, or one byte if HPACK's static
table has name and value. The first block on a connection sets our table's size to 0, so later
changes of that setting by the peer do not matter.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from hpack.hpack import encode_integer
from hpack.table import HeaderTable

NO_TABLE: Final = b"\x20"
"""The table size update at the beginning of our first block."""

_INDEXED = 0x80


def encode_headers(pairs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return the header block of these fields. Names must be in lower case."""
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
