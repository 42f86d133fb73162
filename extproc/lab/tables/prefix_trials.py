"""What the tables of the page on prefix caches are made of: trials, without their seeds."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

from extproc.lab import published_rules
from extproc.lab.tables.contenders import AGAINST_ADVERSARIES, CONTENDERS, OURS, YARDSTICK
from extproc.lab.tables.scenes import ADVERSARIES
from extproc.lab.tables.trials import SHOWN, WITHOUT, Trial

SIDECARS = (1, 2, 4)
SHARED = ("kubeai-chat-1600", "kubeai-threads-600", "saas at 1.25", "codegen at 2", "mooncake at 3")
"""Where several sidecars are tried."""

CUT = ("codegen at 2", "mooncake at 3")
"""Where Envoy shows less or more of a body."""

WEIGHED = ("kubeai-chat-1600", "saas at 1.25", "codegen at 2", "mooncake at 3")
"""Where each of the weights is left out, with one sidecar and with four."""


def scene_trials(scene: str) -> list[Trial]:
    """All contenders."""
    return [Trial(scene, name) for name in CONTENDERS]


def adversary_trials(scene: str) -> list[Trial]:
    """Those that are tried there."""
    return [Trial(scene, name) for name in AGAINST_ADVERSARIES]


def sidecar_trials(scene: str) -> list[Trial]:
    """The yardstick and ours, behind so many sidecars; these workloads have one by default."""
    return [
        Trial(scene, name, sidecars=number if number > 1 else None)
        for name in (YARDSTICK, OURS)
        for number in SIDECARS
    ]


def shared_trials(scene: str) -> list[Trial]:
    """The yardstick, the published rules and ours, each behind the most sidecars."""
    names = (YARDSTICK, *published_rules.names(), OURS)
    return [Trial(scene, name, sidecars=max(SIDECARS)) for name in names]


def cut_trials(scene: str) -> list[Trial]:
    """Ours, with so much of a body shown."""
    return [Trial(scene, OURS, shown=shown) for shown in (*SHOWN, None)]


def weight_trials(scene: str, sidecars: int) -> list[Trial]:
    """Ours as it is, and without each of its weights; these workloads have one by default."""
    number = sidecars if sidecars > 1 else None
    return [Trial(scene, OURS, sidecars=number, without=name) for name in (None, *WITHOUT)]


def trials(scenes: Iterable[str]) -> list[Trial]:
    """All that the tables need, without their seeds."""
    return [
        *chain.from_iterable(scene_trials(scene) for scene in scenes),
        *chain.from_iterable(adversary_trials(scene) for scene in ADVERSARIES),
        *chain.from_iterable(sidecar_trials(scene) for scene in SHARED),
        *chain.from_iterable(shared_trials(scene) for scene in SHARED),
        *chain.from_iterable(cut_trials(scene) for scene in CUT),
        *chain.from_iterable(weight_trials(scene, n) for scene in WEIGHED for n in (1, 4)),
    ]
