"""Trials of the tables on prefix caches, without their seeds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from extproc.lab import published_rules
from extproc.lab.tables.contenders import (
    AGAINST_ADVERSARIES,
    CONTENDERS,
    ORACLES,
    OURS,
    WITH_LONG_PREFIXES,
    YARDSTICK,
)
from extproc.lab.tables.scenes import ADVERSARIES, SHARED_PREFIXES
from extproc.lab.tables.trials import SHOWN, WITHOUT, Trial

SIDECARS = (1, 2, 4, 8, 16)
SHARES = (None, 10, 25, 100)
"""Milliseconds after which sidecars know of each other's requests; None if they share no state."""

PUBLISHED_SIDECARS = 4
"""Sidecars in front of which the published rules are compared."""

SHARED = (
    *("kubeai-chat-1600", "kubeai-threads-600", "saas at 1.25", "codegen at 2", "mooncake at 3"),
    "agents-20",
)
"""Scenes with several sidecars."""

CUT = ("codegen at 2", "mooncake at 3")
"""Scenes in which Envoy shows bodies in part."""

WEIGHED = ("agents-20", "kubeai-chat-1600", "mooncake at 3")
"""Scenes in which each of the weights is turned off, with one and with four sidecars."""


def scene_trials(scene: str) -> list[Trial]:
    """Return the trials of all contenders."""
    return [Trial(scene, name) for name in CONTENDERS]


def adversary_trials(scene: str) -> list[Trial]:
    """Return the trials of the contenders against adversaries."""
    return [Trial(scene, name) for name in AGAINST_ADVERSARIES]


def prefix_trials(scene: str) -> list[Trial]:
    """Return the trials of the contenders in scenes with long shared prefixes."""
    return [Trial(scene, name) for name in WITH_LONG_PREFIXES]


def row_trials(scene: str) -> list[Trial]:
    """Return the trials of the contenders that a scene has."""
    if scene in ADVERSARIES:
        return adversary_trials(scene)
    return prefix_trials(scene) if scene in SHARED_PREFIXES else scene_trials(scene)


def oracle_trials(scene: str) -> list[Trial]:
    """Return the trials of the oracle's rules, with the first seed only."""
    return [Trial(scene, name) for name in ORACLES]


def sidecar_trials(scene: str) -> list[Trial]:
    """Return the trials of the yardstick behind one sidecar, of ours, and of ours behind more.

    These workloads have one sidecar by default.
    """
    several = [
        Trial(scene, OURS, sidecars=number, share=share)
        for number in SIDECARS[1:]
        for share in SHARES
    ]
    return [Trial(scene, YARDSTICK), Trial(scene, OURS), *several]


def shared_trials(scene: str) -> list[Trial]:
    """Return the trials of yardstick, published rules and ours behind several sidecars."""
    names = (YARDSTICK, *published_rules.names(), OURS)
    return [Trial(scene, name, sidecars=PUBLISHED_SIDECARS) for name in names]


def cut_trials(scene: str) -> list[Trial]:
    """Return our trials with parts of bodies."""
    return [Trial(scene, OURS, shown=shown) for shown in (*SHOWN, None)]


def weight_trials(scene: str, sidecars: int) -> list[Trial]:
    """Return our trials with all weights, and without each of them.

    These workloads have one sidecar by default.
    """
    number = sidecars if sidecars > 1 else None
    return [Trial(scene, OURS, sidecars=number, without=name) for name in (None, *WITHOUT)]


def trials(scenes: Iterable[str]) -> list[Trial]:
    """Return all trials of the tables."""
    return [
        *chain.from_iterable(scene_trials(scene) for scene in scenes),
        *chain.from_iterable(adversary_trials(scene) for scene in ADVERSARIES),
        *chain.from_iterable(prefix_trials(scene) for scene in SHARED_PREFIXES),
        *chain.from_iterable(sidecar_trials(scene) for scene in SHARED),
        *chain.from_iterable(shared_trials(scene) for scene in SHARED),
        *chain.from_iterable(cut_trials(scene) for scene in CUT),
        *chain.from_iterable(weight_trials(scene, n) for scene in WEIGHED for n in (1, 4)),
    ]
