"""One line of the output of `--check`."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from extproc.envoy.nodes import Node


class Severity(Enum):
    ERROR = "error"
    """Requests fail, clients can choose addresses, or no request gets a decision."""

    WARNING = "warning"
    """Requests may fail under load or with some clients, or decisions get worse."""

    HINT = "hint"
    """A choice that operators should know about."""


@dataclass(frozen=True)
class Finding:
    severity: Severity
    line: int
    where: str
    """The part of the configuration, such as `listener llm, ext_proc`."""

    problem: str
    why: str
    fix: str

    def __str__(self) -> str:
        return (
            f"line {self.line}: {self.severity.value}: {self.where}: {self.problem}: {self.why}; "
            f"fix: {self.fix}"
        )


def error(node: Node, where: str, problem: str, why: str, fix: str) -> Finding:
    return Finding(Severity.ERROR, node.line, where, problem, why, fix)


def warning(node: Node, where: str, problem: str, why: str, fix: str) -> Finding:
    return Finding(Severity.WARNING, node.line, where, problem, why, fix)


def hint(node: Node, where: str, problem: str, why: str, fix: str) -> Finding:
    return Finding(Severity.HINT, node.line, where, problem, why, fix)
