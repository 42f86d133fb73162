"""Finds prose in the repository: Markdown, docstrings, comments, messages and names of tests."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_HTML = re.compile(r"<!--.*?-->|<[^>\n]+>", re.DOTALL)
_CODE = re.compile(r"`[^`]*`")
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_HEADING = re.compile(r"^#+ +(.*)$", re.MULTILINE)
_BLOCK_END = re.compile(r"\n\s*\n|\n\s*(?:[-*+]|\d+\.) ")
_SENTENCE_END = re.compile(r"(?<=[.!?])[)\"']?\s+(?=[A-Z`*\[(\"])")
_GENERATED = "extproc/edge/wire"
_VALUES = frozenset({"property", "cached_property", "fixture"})
"""Decorators that turn a function into a value."""


class Prose(NamedTuple):
    """A piece of text that people read, and where it is."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {' '.join(self.text.split())[:100]}"


def pages() -> list[Path]:
    """Return the Markdown pages of the repository."""
    names = ("*.md", "docs/*.md", "manifests/*.md")
    return [path for name in names for path in sorted(ROOT.glob(name))]


def modules(*folders: str) -> list[Path]:
    """Return the Python files below some folders, without generated ones."""
    found = (path for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))
    return [path for path in found if _GENERATED not in path.as_posix()]


def headings(page: Path) -> Iterator[Prose]:
    """Yield the headings of a page."""
    text = _without(_FENCE, page.read_text())
    for found in _HEADING.finditer(text):
        yield Prose(_name(page), text.count("\n", 0, found.start()) + 1, found[1])


def sentences(page: Path) -> Iterator[Prose]:
    """Yield the sentences of a page, without its code, tables and headings."""
    text = _without(_HEADING, _plain(page.read_text()))
    start = 0
    for end in [*(found.start() for found in _BLOCK_END.finditer(text)), len(text)]:
        block, line = text[start:end], text.count("\n", 0, start) + 1
        start = end
        rows = [row for row in block.splitlines() if not row.lstrip().startswith(("|", ">|"))]
        for sentence in _SENTENCE_END.split("\n".join(rows).strip()):
            yield Prose(_name(page), line, sentence)


def docstrings(module: Path) -> Iterator[Prose]:
    """Yield the docstrings of a module, of its classes, functions and attributes."""
    for node in _nodes(module):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text)), lineno=line):
                yield Prose(_name(module), line, text)


def function_docstrings(module: Path) -> Iterator[Prose]:
    """Yield the docstrings of a module's functions, but not of its tests.

    Properties and fixtures are values, so their docstrings are noun phrases.
    """
    for node in _nodes(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            is_test = node.name.startswith("test_")
            if text and not is_test and _VALUES.isdisjoint(map(_decorator, node.decorator_list)):
                yield Prose(_name(module), node.lineno, text)


def comments(module: Path) -> Iterator[Prose]:
    """Yield the comments of a module."""
    for token in tokenize.generate_tokens(io.StringIO(module.read_text()).readline):
        if token.type == tokenize.COMMENT:
            yield Prose(_name(module), token.start[0], token.string)


def messages(module: Path) -> Iterator[Prose]:
    """Yield the texts in a module that have at least three words: logs, errors, help."""
    documentation = {id(node.value) for node in _nodes(module) if isinstance(node, ast.Expr)}
    for node in _nodes(module):
        match node:
            case ast.Constant(value=str(text), lineno=line) if (
                len(text.split()) > 2 and id(node) not in documentation
            ):
                yield Prose(_name(module), line, text)


def names(module: Path) -> Iterator[Prose]:
    """Yield the names of a module's classes and functions, as words."""
    for node in _nodes(module):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", node.name)
            yield Prose(_name(module), node.lineno, words)


def matches(pattern: re.Pattern[str], prose: Iterable[Prose]) -> list[str]:
    """Return a line for each piece of prose in which the pattern occurs."""
    return [
        f"{found[0]!r} in {one}"
        for one in prose
        if (found := pattern.search(_without(_CODE, one.text)))
    ]


@cache
def _nodes(module: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(module.read_text())))


def _plain(markdown: str) -> str:
    """Return Markdown without code blocks and markup; inline code becomes one word."""
    text = _without(_HTML, _without(_FENCE, markdown))
    return _LINK.sub(r"\1", _CODE.sub("CODE", text))


def _without(pattern: re.Pattern[str], text: str) -> str:
    """Blank out what matches, but keep the line breaks, so that line numbers stay true."""
    return pattern.sub(lambda found: "\n" * found[0].count("\n") or " ", text)


def _decorator(node: ast.expr) -> str:
    """Return the last part of a decorator's name, such as `fixture` for `@pytest.fixture()`."""
    called = node.func if isinstance(node, ast.Call) else node
    return ast.unparse(called).rpartition(".")[2]


def _name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()
