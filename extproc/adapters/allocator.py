"""Settings of the C library's allocator, for bodies of megabytes."""

from __future__ import annotations

import ctypes

KEPT_BYTES = 64 * 2**20
"""Freed memory that stays with the process: enough for a body of 8 MiB."""

_MAPPED_BYTES = 32 * 2**20
"""Larger blocks are mapped for themselves; glibc takes no higher threshold."""

# Parameters of mallopt(3).
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3


def keep_freed_memory() -> bool:
    """Tell the allocator to keep freed memory for the next large body; return whether it does.

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
