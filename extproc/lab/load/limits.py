"""The limit of open files; each stream needs one."""

from __future__ import annotations

import resource

_OTHERS = 64
"""Open files of a process other than its streams."""


def raise_file_limit() -> int:
    """Raise the limit of this process and its children; return the possible number of streams."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # macOS reports no limit, but has one.
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (2**31 if soft == resource.RLIM_INFINITY else soft) - _OTHERS


def file_limit_warning(streams: int, allowed: int) -> str:
    """Return a warning if a process needs more streams than allowed, or an empty string."""
    if streams <= allowed:
        return ""
    return (
        f"a process can open {allowed:,} streams here, but may need {streams:,}: raise the limit "
        "of open files (ulimit -Hn), or give more --processes"
    )
