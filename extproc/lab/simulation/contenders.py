"""Strategies and published rules that a simulation compares."""

from __future__ import annotations

import argparse
from random import Random
from typing import NamedTuple, get_args

from extproc.adapters.configuration.document import DocumentError, parse
from extproc.core.fleet.signals import Signals
from extproc.core.schema import LoadBalancingSpec, ModelSpec
from extproc.core.schema.load_balancing import StrategyName
from extproc.core.strategies import build
from extproc.lab import oracle, published_rules
from extproc.lab.input_error import InputError
from extproc.lab.simulation.sidecars import SESSION_HEADER

STRATEGIES: tuple[str, ...] = tuple(one for one in get_args(StrategyName) if one != "Chain")
"""Strategies that need no parameters."""

DEFAULT_STRATEGIES = ("Random", "LeastLoad", "PrefixHash")


class Contender(NamedTuple):
    """A strategy or a published rule to compare."""

    load_balancing: LoadBalancingSpec
    published_rule: str = ""

    @property
    def reads_prompts(self) -> bool:
        """True if the shown part of a body makes a difference."""
        signals = Signals(lambda: 0.0)
        return (
            bool(self.published_rule)
            or build(self.load_balancing, Random(0), signals).reads_prompts
        )


def contenders(asked: argparse.Namespace, model: ModelSpec | None) -> list[Contender]:
    """Return the strategies to compare."""
    base = model.load_balancing if model else LoadBalancingSpec()
    if asked.model is not None and model is None:
        raise InputError("--model needs --models FILE, the document with that model")
    if base.prefix_hash.headers and SESSION_HEADER not in base.prefix_hash.headers:
        raise InputError(
            f"{asked.models}: 'prefixSource' {base.prefix_hash.prefix_source} does not read "
            f"{SESSION_HEADER}, the only header of simulated requests"
        )
    if asked.strategy is None:
        if model is not None:
            return [Contender(base)]
        return [_contender(name, base) for name in DEFAULT_STRATEGIES]
    wanted = [name for text in asked.strategy for name in text.split(",") if name]
    if not wanted:
        raise InputError("--strategy: give at least one name")
    known = (*STRATEGIES, *published_rules.names(), *oracle.names())
    for name in wanted:
        if name not in known and name != base.strategy:
            raise InputError(f"--strategy: {name!r} is not one of {', '.join(known)}")
    return [_contender(name, base) for name in wanted]


def _contender(name: str, base: LoadBalancingSpec) -> Contender:
    """Return a strategy with the parameters of `base`, a published rule or the oracle."""
    if name in published_rules.names() or oracle.rule_of(name):
        return Contender(base, name)
    if name == base.strategy:
        return Contender(base)
    return Contender(base.model_copy(update={"strategy": name, "chain": ()}))


def model_of(asked: argparse.Namespace) -> ModelSpec:
    """Return the chosen model of the document. Raises InputError."""
    try:
        document = parse(asked.models.read_bytes())
    except OSError as error:
        raise InputError(f"{asked.models}: {error.strerror}") from None
    except DocumentError as error:
        raise InputError("\n".join(f"{asked.models}: {one}" for one in error.problems)) from None
    models = [model for model in document.models if model.split is None]
    found = [model for model in models if asked.model in (None, model.name)]
    if not found:
        names = ", ".join(model.name for model in models)
        raise InputError(f"{asked.models}: unknown model {asked.model!r}: known models are {names}")
    return found[0]
