"""Docstrings of classes, attributes and enum members, as texts of the reference."""

from __future__ import annotations

from collections.abc import Iterable

from extproc.adapters.configuration.docstrings import attribute_docstrings, one_line


class Undocumented(Exception):
    """The reference needs a docstring that is missing."""


def documented(cls: type, names: Iterable[str]) -> dict[str, str]:
    """Return the docstrings of these attributes. Raises Undocumented if one has none."""
    found = attribute_docstrings(cls)
    for name in names:
        if name not in found:
            raise Undocumented(f"{cls.__name__}.{name} has no docstring")
    return {name: found[name] for name in names}


def summary(cls: type) -> str:
    """Return the first paragraph of a class's docstring. Raises Undocumented."""
    if "__doc__" not in vars(cls) or not cls.__doc__:
        raise Undocumented(f"{cls.__name__} has no docstring")
    return one_line(cls.__doc__.split("\n\n")[0])
