"""Open files: each stream is one."""

from __future__ import annotations

import resource

_OTHERS = 64
"""Files a process has open beside its streams."""


def raise_file_limit() -> int:
    """Allows this process (and those it starts) as many as may be; how many streams that makes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):
            # macOS says it knows no limit, and has one.
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return (2**31 if soft == resource.RLIM_INFINITY else soft) - _OTHERS


def complaint(streams: int, allowed: int) -> str:
    """What is to be said where a process may not have so many streams; else nothing."""
    if streams <= allowed:
        return ""
    return (
        f"a process may hold {allowed:,} streams here, and one of them is to hold up to "
        f"{streams:,}: raise the limit of open files (ulimit -Hn), or give more --processes"
    )
