"""Docstrings of attributes, which Python does not keep: they are read from the source."""

from __future__ import annotations

import ast
import inspect
from itertools import pairwise
from textwrap import dedent


def one_line(text: str) -> str:
    """Return a text without line breaks."""
    return " ".join(text.split())


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
