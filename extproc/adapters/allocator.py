"""Settings of the C library's allocator, for bodies of megabytes."""

from __future__ import annotations

import ctypes

KEPT_BYTES = 64 * 2**20
"""Freed memory that the process keeps: enough for a body of 8 MiB."""

_MAPPED_BYTES = 32 * 2**20
"""Larger blocks get their own mapping; glibc accepts no higher threshold."""

# Parameters of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Make the allocator keep freed memory for the next large body; return True if it does.

    By default glibc returns a block of megabytes to the kernel when it is freed, and the kernel
    gives the next body new pages, one fault for each 4 KiB: half of the CPU time of a body of
    8 MiB. Other C libraries have no `mallopt`, and keep their own behavior.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    kept = mallopt(_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(_MMAP_THRESHOLD, _MAPPED_BYTES)
    return bool(kept)
