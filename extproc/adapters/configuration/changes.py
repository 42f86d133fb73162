"""Describes the difference between two models documents in a few words, for the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

from extproc.core.schema import ModelSpec, ModelsSpec

LONGEST = 1_000
"""Longest field of the log line, in characters."""

LONGEST_VALUE = 60
"""Longest value, in characters."""

_MOST_KEYS = 20
"""Changed keys of one model that are listed."""


def changes(before: ModelsSpec | None, after: ModelsSpec) -> dict[str, str]:
    """Return what changed as the fields `added`, `removed` and `changed`, without empty ones.

    `changed` lists the keys of each model that differ: `llama: endpoints +1 -1; qwen: aliases +1`.
    """
    old = {model.name: model for model in before.models} if before is not None else {}
    new = {model.name: model for model in after.models}
    changed = [
        f"{name}: {', '.join(_keys(old[name], model))}"
        for name, model in new.items()
        if name in old and old[name] != model
    ]
    if list(old) != list(new) and old.keys() == new.keys():
        changed.append("the order of the models")
    found = {
        "added": _bounded([name for name in new if name not in old], ", "),
        "removed": _bounded([name for name in old if name not in new], ", "),
        "changed": _bounded(changed, "; "),
    }
    return {field: text for field, text in found.items() if text}


def _keys(before: ModelSpec, after: ModelSpec) -> Iterator[str]:
    # The document contains no secrets, so any value may be shown.
    differences = _differences(
        "", before.model_dump(by_alias=True), after.model_dump(by_alias=True)
    )
    yield from islice(differences, _MOST_KEYS)
    if more := sum(1 for _ in differences):
        yield f"and {more} more"


def _differences(path: str, before: object, after: object) -> Iterator[str]:
    """Yield a few words for each key below `path` whose values differ."""
    if before == after:
        return
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        for key in {**before, **after}:
            yield from _differences(f"{path}.{key}".lstrip("."), before.get(key), after.get(key))
    elif isinstance(before, tuple) and isinstance(after, tuple):
        yield from _list_differences(path, before, after)
    elif before is None or after is None:
        yield f"{path} {'added' if before is None else 'removed'}"
    else:
        yield f"{path} {_shown(before)} -> {_shown(after)}"


def _list_differences(
    path: str, before: Sequence[object], after: Sequence[object]
) -> Iterator[str]:
    old, new = _by_model(before), _by_model(after)
    if old is not None and new is not None:
        yield from _differences(path, old, new)
        return
    # As text, because filters of a chain are not hashable; a list may have thousands of entries.
    had, has = set(map(repr, before)), set(map(repr, after))
    added, removed = len(has - had), len(had - has)
    counts = [f"+{added}"] * bool(added) + [f"-{removed}"] * bool(removed)
    yield f"{path} {' '.join(counts) or 'in another order'}"


def _by_model(values: Sequence[object]) -> dict[str, object] | None:
    """Return the targets of a split by their model; None for any other list."""
    found: dict[str, object] = {}
    for value in values:
        if not isinstance(value, Mapping) or "model" not in value:
            return None
        found[str(value["model"])] = value
    return found


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def _bounded(items: Iterable[str], separator: str) -> str:
    """Join as many items as fit, and count the others."""
    listed = list(items)
    text, shown = "", 0
    for item in listed:
        longer = f"{text}{separator}{item}" if text else item[:LONGEST]
        if len(longer) > LONGEST:
            break
        text, shown = longer, shown + 1
    more = len(listed) - shown
    return f"{text}{separator}and {more} more" if more else text
