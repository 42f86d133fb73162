"""Writes docs/flow-control-figures.md, which compares flow control with none and with llm-d's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from extproc.core.schema import FlowControlSpec, LoadBalancingSpec
from extproc.lab.engine import profile
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import summarize
from extproc.lab.simulation.events import Event, Join
from extproc.lab.simulation.pool import simulate_all
from extproc.lab.simulation.scenario import Scenario
from extproc.lab.tables.markdown import table
from extproc.lab.workloads import Options, named
from extproc.lab.workloads.tenants import Crowd, crowds
from extproc.lab.workloads.workload import Workload

PAGE = "flow-control-figures.md"

_ENGINE = "l4-llama-3.1-8b-fp8"
_SECONDS = 120.0
_FILLING = 20.0
"""Seconds in which the batches fill."""
_SHARE = 16.0
"""Requests per second of each of two tenants that the fleet of eight engines can serve."""

NONE, FLOW, GATE = "none", "flowControl", "llm-d's rule"
KNOWING = "knows the steps"
LATE = "flowControl, 5 ms"
_RULES = (NONE, FLOW, GATE)


class Case(NamedTuple):
    """A workload with one way to control its flow."""

    workload: Workload
    rule: str
    spec: FlowControlSpec
    sidecars: int = 1
    share: float | None = None
    events: Sequence[Event] = ()
    delay: float = 0.0

    def scenario(self) -> Scenario:
        """Return the simulation of this case."""
        engine = profile.named(self.workload.profile)
        usual = Scenario.of(self.workload, engine, LoadBalancingSpec(strategy="PrefixCache"))
        routing = replace(
            usual.routing,
            flow_control=None if self.rule == NONE else self.spec,
            saturation_gate=self.rule == GATE,
            step_admission=self.rule == KNOWING,
        )
        return replace(
            usual,
            routing=routing,
            sidecars=self.sidecars,
            share=self.share,
            events=self.events,
            delay=self.delay,
        )


def _spec(**more: object) -> FlowControlSpec:
    document = {"maxWaitSeconds": 290.0, "maxQueued": 100_000, **more}
    return FlowControlSpec.model_validate(document)


def _overloads() -> tuple[list[Case], list[str]]:
    """Return the cases of the section on overload, and their names."""
    wanted = [
        ("kubeai-chat, 3,200 at once", "kubeai-chat-3200", 1.0),
        ("kubeai-chat, 8,000 at once", "kubeai-chat-8000", 1.0),
        ("saas, 1.5 times the knee", "saas", 2.25),
        ("kubeai-chat, 800 at once: no overload", "kubeai-chat-800", 1.0),
    ]
    cases, names = [], []
    for label, name, pace in wanted:
        workload = named(name, Options(pace=pace))
        cases += [Case(workload, rule, _spec()) for rule in _RULES]
        names.append(label)
    return cases, names


_QUIET = Crowd("quiet", 10.0)
_LOUD = Crowd("loud", 5 * _SHARE)
_CHAT = Crowd("chat", 10.0, objective="chat")
_BATCH = Crowd("batch", 54.0, objective="batch")
_SHORT = [Crowd("chat", 10.0, 200, 30, "chat"), Crowd("batch", 160.0, 200, 30, "batch")]
_CLASSES = [{"name": "chat", "priority": 1}, {"name": "batch", "priority": -1}]


def _mixed(one: Crowd, other: Crowd, spec: FlowControlSpec) -> list[Case]:
    """Return one crowd alone, then both with each rule, late messages, or known steps."""
    alone = Case(crowds([one], _SECONDS, _ENGINE), NONE, spec)
    both = crowds([one, other], _SECONDS, _ENGINE)
    late = Case(both, LATE, spec, delay=0.005)
    return [alone, *(Case(both, rule, spec) for rule in (*_RULES, KNOWING)), late]


def _ttft(case: Case, run: Run, name: str, since: float = 0.0) -> tuple[float, float]:
    """Return the mean and the 99th percentile of a crowd's TTFT in milliseconds.

    Requests that came before `since` do not count.
    """
    mine = np.array([turn.tenant == name for turn in case.workload.turns])
    times = 1000 * (run.first - run.wanted)[mine & (run.wanted >= since)]
    return float(np.nanmean(times)), float(np.nanpercentile(times, 99))


def _throughput(run: Run) -> float:
    """Return the tokens per second while the overload lasts, without its first 20 s."""
    late = (run.last > _FILLING) & (run.last < _SECONDS)
    return float((run.prompt_tokens + run.output_tokens)[late].sum()) / (_SECONDS - _FILLING)


def _jain(case: Case, run: Run) -> float:
    """Return Jain's index of the tokens that each crowd got while the overload lasted."""
    turns = case.workload.turns
    tokens = run.prompt_tokens + run.output_tokens
    done = (run.last > _FILLING) & (run.last < _SECONDS)
    names = np.array([turn.tenant for turn in turns])
    shares = [float(tokens[done & (names == name)].sum()) for name in sorted(set(names))]
    return sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))


def _overload_table(cases: Sequence[Case], runs: Sequence[Run], names: Sequence[str]) -> str:
    rows = []
    for position, name in enumerate(names):
        three = range(3 * position, 3 * position + 3)
        base = summarize(runs[three[0]])
        for number in three:
            one = summarize(runs[number])
            throughput, ttft = one.metric("total_token_throughput"), one.metric("mean_ttft_ms")
            rows.append(
                [
                    name,
                    cases[number].rule,
                    _ratio(throughput, base.metric("total_token_throughput")),
                    f"{ttft:,.0f}",
                    _ratio(ttft, base.metric("mean_ttft_ms")),
                    f"{one.metric('p99_ttft_ms'):,.0f}",
                    f"{100 * (one.hit_rate or 0):.1f}",
                ]
            )
    headings = ["workload", "flow control", "throughput, ratio", "mean TTFT (ms)", "ratio"]
    return table([*headings, "p99 TTFT (ms)", "hits (%)"], rows, left=2)


def _ratio(value: float | None, base: float | None) -> str:
    return f"{(value or 0) / (base or 1):.3f}"


def _mixed_table(cases: Sequence[Case], runs: Sequence[Run], names: tuple[str, str]) -> str:
    rows = []
    for case, run in zip(cases, runs, strict=True):
        is_alone = case is cases[0]
        mean, p99 = _ttft(case, run, names[0])
        later = _ttft(case, run, names[0], _FILLING)[1]
        other = "" if is_alone else f"{_ttft(case, run, names[1])[0]:,.0f}"
        rule = f"{names[0]} alone" if is_alone else case.rule
        tokens = f"{_throughput(run):,.0f}"
        rows.append([rule, f"{mean:,.0f}", f"{p99:,.0f}", f"{later:,.0f}", other, tokens])
    headings = ["flow control", f"{names[0]}: mean TTFT (ms)", "p99 (ms)", "p99 after 20 s"]
    return table([*headings, f"{names[1]}: mean TTFT (ms)", "tokens/s"], rows)


def write(docs: Path) -> None:
    """Simulate everything and write the page."""
    overloads, names = _overloads()
    tenants = _mixed(_QUIET, _LOUD, _spec())
    classes = _mixed(_CHAT, _BATCH, _spec(classes=_CLASSES))
    both = crowds([Crowd("a", 5 * _SHARE), Crowd("b", 2 * _SHARE, 900, 100)], _SECONDS, _ENGINE)
    fair = [Case(both, rule, _spec()) for rule in _RULES]
    joins = [Join(10.0 + 5.0 * number, number) for number in range(8)]
    zero = [Case(crowds([_QUIET], 60.0, _ENGINE), rule, _spec(), events=joins) for rule in _RULES]
    shared = [
        Case(both, FLOW, _spec(), sidecars=4, share=None if delay is None else delay / 1000)
        for delay in (None, 25)
    ]
    brief = crowds(_SHORT, _SECONDS, _ENGINE)
    short = [Case(brief, rule, _spec(classes=_CLASSES)) for rule in _RULES]
    groups = [overloads, tenants, fair, classes, zero, shared, short]
    runs = iter(simulate_all([case.scenario() for group in groups for case in group]))
    taken = [[next(runs) for _ in group] for group in groups]
    text = (
        Path(__file__)
        .with_suffix(".md")
        .read_text()
        .format(
            overloads=_overload_table(overloads, taken[0], names),
            tenants=_mixed_table(tenants, taken[1], ("quiet", "loud")),
            fair=_fair_table(fair, taken[2]),
            classes=_mixed_table(classes, taken[3], ("chat", "batch")),
            zero=_zero_table(zero, taken[4]),
            shared=_shared_table(shared, taken[5]),
            short=_short_table(short, taken[6]),
        )
    )
    (docs / PAGE).write_text(text)


def _short_table(cases: Sequence[Case], runs: Sequence[Run]) -> str:
    rows = []
    for case, run in zip(cases, runs, strict=True):
        mean, p99 = _ttft(case, run, "chat")
        batch = _ttft(case, run, "batch")[0]
        rows.append(
            [case.rule, f"{mean:,.0f}", f"{p99:,.0f}", f"{batch:,.0f}", f"{run.seconds:,.0f}"]
        )
    headings = ["flow control", "chat: mean TTFT (ms)", "p99 (ms)"]
    return table([*headings, "batch: mean TTFT (ms)", "seconds in all"], rows)


def _fair_table(cases: Sequence[Case], runs: Sequence[Run]) -> str:
    rows = [
        [case.rule, f"{_jain(case, run):.3f}", f"{_throughput(run):,.0f}"]
        for case, run in zip(cases, runs, strict=True)
    ]
    return table(["flow control", "Jain's index", "tokens/s"], rows)


def _zero_table(cases: Sequence[Case], runs: Sequence[Run]) -> str:
    rows = []
    for case, run in zip(cases, runs, strict=True):
        failed = int(np.isnan(run.last).sum())
        mean = 1000 * float(np.nanmean(run.first - run.wanted)) if failed < len(run.last) else 0.0
        rows.append([case.rule, f"{failed:,} of {len(run.last):,}", f"{mean:,.0f}"])
    return table(["flow control", "failed", "mean TTFT (ms)"], rows)


def _shared_table(cases: Sequence[Case], runs: Sequence[Run]) -> str:
    rows = []
    for case, run in zip(cases, runs, strict=True):
        name = (
            "no shared state" if case.share is None else f"shared after {case.share * 1000:.0f} ms"
        )
        mean = 1000 * float(np.nanmean(run.first - run.wanted))
        rows.append([name, f"{_jain(case, run):.3f}", f"{mean:,.0f}", f"{_throughput(run):,.0f}"])
    return table(["four sidecars", "Jain's index", "mean TTFT (ms)", "tokens/s"], rows)
