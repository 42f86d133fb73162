"""Workloads that are bad for some rule for routing by prefixes.

They are invented, not published. Requests or sessions arrive at random times, at about three
quarters of the rate that eight L4s can serve with good routing. A rule that wastes capacity has a
growing queue.
"""

from __future__ import annotations

from random import Random

from extproc.lab.workloads.lengths import log_normal
from extproc.lab.workloads.workload import Segment, Session, Turn, Workload, conversation

REQUESTS = 3_000

ONE_PREFIX_TOKENS = 2_000
HOT_PREFIX_TOKENS = 4_000
HOT_SHARE = 0.5
OTHER_PREFIXES = 100
OTHER_PREFIX_TOKENS = 2_000
"""Tokens of each prefix. Together they are three times one engine's cache, and less than half of
all caches.
"""


def one_prefix(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return short questions of different users, all behind one system prompt.

    Affinity to the prefix gains nothing after the first minute, and sends all requests to one
    engine.
    """
    rng = Random(f"one-prefix/{seed}")
    system = Segment("system", ONE_PREFIX_TOKENS, "system")
    sessions = [_question(rng, number, (system,)) for number in range(REQUESTS)]
    return _workload("one-prefix", sessions, 38.0 * pace)


def all_distinct(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return prompts without common prefixes. A search for matches must not cost anything."""
    rng = Random(f"all-distinct/{seed}")
    sessions = [_question(rng, number, (), mean=1_000, sigma=0.8) for number in range(REQUESTS)]
    return _workload("all-distinct", sessions, 17.0 * pace)


def hot_prefix(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return requests of which half share one prefix; the others have one of many prefixes.

    The hot prefix belongs on every engine, the others on one or two. No fixed width fits both.
    """
    rng = Random(f"hot-prefix/{seed}")
    hot = Segment("system/hot", HOT_PREFIX_TOKENS, "system")
    others = [
        Segment(f"system/{number}", OTHER_PREFIX_TOKENS, "system")
        for number in range(OTHER_PREFIXES)
    ]
    sessions = [
        _question(rng, number, (hot if rng.random() < HOT_SHARE else rng.choice(others),))
        for number in range(REQUESTS)
    ]
    return _workload("hot-prefix", sessions, 24.0 * pace)


def heavy_tail(seed: int = 0, pace: float = 1.0) -> Workload:
    """Return conversations of short messages, and a few as long as all others together.

    Request counts are then a poor measure of work. A request behind a long prompt waits for
    seconds.
    """
    rng = Random(f"heavy-tail/{seed}")
    sessions: list[Session] = []
    requests = 0
    while requests < REQUESTS:
        sessions.append(_conversation(rng, len(sessions)))
        requests += len(sessions[-1].turns)
    return _workload("heavy-tail", sessions, 5.0 * pace)


def _workload(name: str, sessions: list[Session], sessions_per_second: float) -> Workload:
    return Workload(name=name, sessions=sessions, requests_per_second=sessions_per_second)


def _question(
    rng: Random,
    number: int,
    opening: tuple[Segment, ...],
    mean: float = 60,
    sigma: float = 0.6,
) -> Session:
    question = Segment(f"question/{number}", log_normal(rng, mean, sigma, least=8, most=16_000))
    answer = log_normal(rng, mean=100, sigma=0.6, least=8, most=250)
    output = Segment(f"question/{number}/answer", answer, "assistant")
    return Session((Turn((*opening, question), output),))


def _conversation(rng: Random, number: int) -> Session:
    turns = 1 + min(7, int(rng.expovariate(0.35)))
    messages = [log_normal(rng, mean=500, sigma=1.8, least=8, most=12_000) for _ in range(turns)]
    answers = [log_normal(rng, mean=120, sigma=0.8, least=8, most=400) for _ in range(turns)]
    asked = conversation(f"session/{number}", (), messages, answers)
    return Session(
        [
            turn._replace(think_seconds=rng.expovariate(1 / 3) if place else 0.0)
            for place, turn in enumerate(asked)
        ]
    )
