"""Tables and figures in Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1) -> str:
    """Return a table; the first `left` columns are text, the others figures."""
    rule = ["---" if column < left else "---:" for column in range(len(headings))]
    lines = [headings, rule, *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value: float | None) -> str:
    """Format a number with its significant digits."""
    if value is None:
        return ""
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def against(published: float | None, ours: float | None) -> list[str]:
    """Return the published figure, the simulated one, and simulated over published."""
    if not published or ours is None:
        return [number(published), number(ours), ""]
    return [number(published), number(ours), f"{ours / published:.2f}"]


def percent(share: float | None) -> str:
    """Format a share from 0 to 1 as percent."""
    return "" if share is None else f"{share:.0%}"


def yes(holds: bool) -> str:
    """Format a Boolean."""
    return "yes" if holds else "**no**"
