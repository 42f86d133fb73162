"""Splits a header block into its fields without decoding them.

A field is a number, followed by up to two strings, each after its length (RFC 7541, section 6).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MOST_UPDATES: Final = 2
"""Table size updates that a block may begin with (RFC 7541, section 4.2)."""

_MOST_DIGITS = 4
"""Continuation bytes of a number. They have 28 bits, more than the length of any block."""


def after_updates(block: bytes) -> int:
    """Return the position of the first field, after the table size updates.

    Raises ValueError if there are more updates than a block may have.
    """
    at = updates = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        updates += 1
        if updates > MOST_UPDATES:
            raise ValueError("too many table size updates")
        _, at = _number(block, at, 5)
    return at


def split(block: bytes, at: int = 0) -> Iterator[bytes]:
    """Yield the encoded fields from `at` on. Raises ValueError if the block is malformed."""
    while at < len(block):
        start = at
        first = block[at]
        if first & 0x80:  # name and value are in a table
            _, at = _number(block, at, 7)
        elif first & 0xE0 == 0x20:
            raise ValueError("a table size update after a field")
        else:
            name, at = _number(block, at, 6 if first & 0x40 else 4)
            for _ in range(1 if name else 2):
                size, at = _number(block, at, 7)
                at += size
        if at > len(block):
            raise ValueError("cut off")
        yield block[start:at]


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """Return a number and its end. Its first byte has `bits` bits (RFC 7541, section 5.1)."""
    try:
        most = (1 << bits) - 1
        number = block[at] & most
        at += 1
        if number < most:
            return number, at
        for shift in range(0, 7 * _MOST_DIGITS, 7):
            digit = block[at]
            at += 1
            number += (digit & 0x7F) << shift
            if not digit & 0x80:
                return number, at
    except IndexError:
        raise ValueError("cut off") from None
    raise ValueError("number too long")
