"""Figures of a run, with the definitions and labels of vLLM's benchmark_serving.py.

The published tables were made with KubeAI's copy of that script. Simulated and measured runs use
the same figures and the same printed block, so you can compare them directly. Figures that the
script leaves out follow the block under a separate heading.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from extproc.lab.measures.names import is_count, is_share, label
from extproc.lab.measures.run import Run
from extproc.lab.measures.times import milliseconds, ratio

_WIDTH = 50


@dataclass(frozen=True)
class Summary:
    """Figures of one run. Only requests with a whole response count, except in `failed`.

    A figure is NaN if there was nothing to measure, None if it is unknown.
    """

    workload: str
    strategy: str

    completed: int
    failed: int
    """benchmark_serving.py does not print these."""

    duration: float
    """Seconds from the start to the last response's end."""

    total_input_tokens: int
    total_output_tokens: int

    request_throughput: float
    """Requests a second; the throughputs below are tokens a second."""

    output_throughput: float
    total_token_throughput: float

    input_throughput: float
    """Prompt tokens, cached or not."""

    requests_per_minute: float

    # From sending to the first token, without the wait for a free slot at the client.
    mean_ttft_ms: float
    median_ttft_ms: float
    std_ttft_ms: float
    p90_ttft_ms: float
    p95_ttft_ms: float
    p99_ttft_ms: float

    # From the time at which the client wanted to send, so it includes the wait.
    mean_wanted_ttft_ms: float
    median_wanted_ttft_ms: float
    std_wanted_ttft_ms: float
    p90_wanted_ttft_ms: float
    p95_wanted_ttft_ms: float
    p99_wanted_ttft_ms: float

    # First to last token over the tokens after the first, for each request with several tokens.
    mean_tpot_ms: float
    median_tpot_ms: float
    std_tpot_ms: float
    p90_tpot_ms: float
    p95_tpot_ms: float
    p99_tpot_ms: float

    # Between two tokens, for each gap, so long responses weigh more than in TPOT.
    mean_itl_ms: float
    median_itl_ms: float
    std_itl_ms: float
    p90_itl_ms: float
    p95_itl_ms: float
    p99_itl_ms: float

    # From sending to the last token.
    mean_e2el_ms: float
    median_e2el_ms: float
    std_e2el_ms: float
    p90_e2el_ms: float
    p95_e2el_ms: float
    p99_e2el_ms: float

    # From sending to the last token over all tokens: `time_per_token` of KubeAI's k6 script.
    mean_time_per_token_ms: float
    median_time_per_token_ms: float
    std_time_per_token_ms: float
    p90_time_per_token_ms: float
    p95_time_per_token_ms: float
    p99_time_per_token_ms: float

    mean_token_rate: float
    """Tokens a second that one client receives: the mean over requests of tokens over time."""

    hit_rate: float | None
    """Prompt tokens found in a cache over all tokens of those prompts."""

    load_spread: float | None
    """Requests of the busiest endpoint over the mean of all; 1 is even."""

    client_busy: float
    """Share of the time in which the client worked. If it is near 1, the client was the limit."""

    notes: dict[str, Any] = field(default_factory=dict)
    """Notes of the run."""

    def metric(self, name: str) -> float | None:
        """Return a figure by name from the attributes or the notes; None if there is none."""
        value = getattr(self, name, None) if name != "notes" else None
        value = self.notes.get(name) if value is None else value
        if isinstance(value, str | bool) or not isinstance(value, int | float | np.number):
            return None
        return None if math.isnan(value) else float(value)


def summarize(run: Run) -> Summary:
    """Return the figures of a run, which may have no responses, gaps or duration at all."""
    good = run.succeeded
    tokens = run.output_tokens[good]
    latency = run.last[good] - run.sent[good]
    timed = latency > 0
    completed = int(np.count_nonzero(good))
    given, made = int(run.prompt_tokens[good].sum()), int(tokens.sum())
    rates = tokens[timed] / latency[timed]
    return Summary(
        workload=run.workload,
        strategy=run.strategy,
        completed=completed,
        failed=int(good.size) - completed,
        duration=run.seconds,
        total_input_tokens=given,
        total_output_tokens=made,
        request_throughput=ratio(completed, run.seconds),
        output_throughput=ratio(made, run.seconds),
        total_token_throughput=ratio(given + made, run.seconds),
        input_throughput=ratio(given, run.seconds),
        requests_per_minute=ratio(60 * completed, run.seconds),
        mean_token_rate=float(rates.mean()) if rates.size else math.nan,
        hit_rate=_hit_rate(run),
        load_spread=_load_spread(run),
        client_busy=run.client_busy,
        notes=dict(run.notes),
        **_times(run),
    )


def _times(run: Run) -> dict[str, float]:
    good = run.succeeded
    sent, first, last = run.sent[good], run.first[good], run.last[good]
    tokens = run.output_tokens[good]
    latency = last - sent
    several, some = tokens > 1, tokens > 0
    return {
        **milliseconds("ttft", first - sent),
        **milliseconds("wanted_ttft", first - run.wanted[good]),
        **milliseconds("tpot", (last - first)[several] / (tokens[several] - 1)),
        **milliseconds("itl", run.gaps),
        **milliseconds("e2el", latency),
        **milliseconds("time_per_token", latency[some] / tokens[some]),
    }


def block(summary: Summary) -> str:
    """Return the block that benchmark_serving.py prints, character for character."""
    lines = [_heading(" Serving Benchmark Result ", "=")]
    lines += [_line(summary, metric) for metric in _HEAD]
    for quantity, heading in _SECTIONS.items():
        lines.append(_heading(heading, "-"))
        lines += [_line(summary, f"{name}_{quantity}_ms") for name in ("mean", "median", "p99")]
    return "\n".join([*lines, "=" * _WIDTH])


def more(summary: Summary) -> str:
    """Return the figures that benchmark_serving.py leaves out, in the format of its block."""
    numbers = [name for name in summary.notes if summary.metric(name) is not None]
    lines = [_heading("Not in benchmark_serving", "-")]
    lines += [_line(summary, metric, nothing="-") for metric in (*_MORE, *numbers)]
    return "\n".join([*lines, "=" * _WIDTH])


_HEAD = (
    *("completed", "duration", "total_input_tokens", "total_output_tokens"),
    *("request_throughput", "output_throughput", "total_token_throughput"),
)

_SECTIONS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
}

_MORE = (
    *("failed", "hit_rate", "load_spread", "client_busy"),
    *("requests_per_minute", "input_throughput", "mean_token_rate"),
    *("mean_wanted_ttft_ms", "median_wanted_ttft_ms", "p99_wanted_ttft_ms"),
    *("p90_ttft_ms", "p95_ttft_ms", "p90_tpot_ms", "p90_itl_ms"),
    *("mean_e2el_ms", "median_e2el_ms", "p99_e2el_ms", "mean_time_per_token_ms"),
)


def _hit_rate(run: Run) -> float | None:
    known = run.cached_tokens >= 0
    asked = int(run.prompt_tokens[known].sum())
    return int(run.cached_tokens[known].sum()) / asked if asked else None


def _load_spread(run: Run) -> float | None:
    """Return the busiest endpoint's requests over the mean.

    Endpoints count from 0. The note `endpoints` gives their number, because some may have no
    requests.
    """
    known = run.endpoint[run.endpoint >= 0]
    if not known.size:
        return None
    requests = np.bincount(known, minlength=int(run.notes.get("endpoints", 0)))
    return float(requests.max() / requests.mean())


def _heading(text: str, filling: str) -> str:
    return f"{text:{filling}^{_WIDTH}}"


def _line(summary: Summary, metric: str, nothing: str = "0.00") -> str:
    """Format a figure's line. Without measurements the script prints 0.00, and so does this."""
    value = summary.metric(metric)
    if value is None:
        shown = nothing
    elif is_share(metric):
        shown = f"{value:.1%}"
    else:
        counted = is_count(metric) or isinstance(summary.notes.get(metric), int)
        shown = f"{value:.0f}" if counted else f"{value:.2f}"
    return f"{label(metric) + ':':<40} {shown:<10}"
