"""Docstrings of classes, attributes and enum members, as texts of the reference."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable
from itertools import pairwise
from textwrap import dedent

from extproc.lab.pages.lines import one_line


class Undocumented(Exception):
    """The reference needs a docstring that is missing."""


def documented(cls: type, names: Iterable[str]) -> dict[str, str]:
    """Return the docstrings of these attributes. Raises Undocumented if one has none."""
    found = attribute_docstrings(cls)
    for name in names:
        if name not in found:
            raise Undocumented(f"{cls.__name__}.{name} has no docstring")
    return {name: found[name] for name in names}


def attribute_docstrings(cls: type) -> dict[str, str]:
    """Return the strings that follow assignments in a class's body, each as one line."""
    tree = ast.parse(dedent(inspect.getsource(cls)))
    body = next(one.body for one in tree.body if isinstance(one, ast.ClassDef))
    found = {}
    for assignment, following in pairwise(body):
        match assignment, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                found[name] = one_line(text)
    return found


def summary(cls: type) -> str:
    """Return the first paragraph of a class's docstring. Raises Undocumented."""
    if "__doc__" not in vars(cls) or not cls.__doc__:
        raise Undocumented(f"{cls.__name__} has no docstring")
    return one_line(cls.__doc__.split("\n\n")[0])
