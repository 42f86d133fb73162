"""Where the fields of a header block begin and end, without decoding them.

RFC 7541, section 6: a field is a number, then up to two strings, each with its length before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MOST_UPDATES: Final = 2
"""Changes of the table's size that a block may begin with (RFC 7541, section 4.2)."""

_MOST_DIGITS = 4
"""Bytes of a number after its first: 28 bits, more than any block is long."""


def after_updates(block: bytes) -> int:
    """Return the position of the first field, after the changes of the table's size.

    Raises ValueError if there are more changes than a block may have.
    """
    at = updates = 0
    while at < len(block) and block[at] & 0xE0 == 0x20:
        updates += 1
        if updates > MOST_UPDATES:
            raise ValueError("too many changes of the table's size")
        _, at = _number(block, at, 5)
    return at


def split(block: bytes, at: int = 0) -> Iterator[bytes]:
    """The fields from `at` on, one after the other. Raises ValueError if the block is malformed."""
    while at < len(block):
        start = at
        first = block[at]
        if first & 0x80:  # all of it in a table
            _, at = _number(block, at, 7)
        elif first & 0xE0 == 0x20:
            raise ValueError("a change of the table's size")
        else:
            name, at = _number(block, at, 6 if first & 0x40 else 4)
            for _ in range(1 if name else 2):
                size, at = _number(block, at, 7)
                at += size
        if at > len(block):
            raise ValueError("cut off")
        yield block[start:at]


def _number(block: bytes, at: int, bits: int) -> tuple[int, int]:
    """A number of so many bits in its first byte (section 5.1), and where it ends."""
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
    raise ValueError("too long a number")
