"""The merged results of several processes, and the warnings about them."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import Sequence
from dataclasses import replace
from math import isnan, nan
from unittest.mock import Mock

import numpy as np
import pytest

from extproc.lab.load import limits
from extproc.lab.load.exchange import Exchange
from extproc.lab.load.failure import Failure
from extproc.lab.load.figures import client, failures, run_of, warnings
from extproc.lab.load.messages import Result
from extproc.lab.load.parent import Collected
from extproc.lab.load.process_monitor import ProcessLoad, ProcessMonitor
from extproc.lab.load.records import Records, peak
from extproc.lab.load.response import Response, Usage
from extproc.lab.measures.comparison import as_json
from extproc.lab.measures.run import Run
from extproc.lab.measures.serving import block, more, summarize
from extproc.lab.workloads.workload import Segment, Turn

TURN = Turn((Segment("q", 20),), Segment("a", 3, "assistant"))


def exchange(
    sent: float, times: Sequence[float], endpoint: str = "", failure: Failure | None = None
) -> Exchange:
    answer = Response("chat", keep=False)
    for time in times:
        answer.event(b'{"choices":[{"delta":{"content":"x"}}]}', time)
    answer.usage = Usage(21, 4, 16) if times else None
    made = Exchange(answer, Mock())
    made.sent, made.endpoint, made.failure, made.streamed = sent, endpoint, failure, True
    return made


def result(records: Records, busy: float = 0.1, lags: Sequence[float] = (0.001,)) -> Result:
    watched = ProcessLoad(busy, busy, array("d", lags), cpu_seconds=1.0)
    return Result(records, watched, unfinished=0, retried=0, connections=2, resident_bytes=10**7)


def collected(*results: Result, reason: str = "", warm_up: Sequence[Result] = ()) -> Collected:
    return Collected(results, warm_up, reason, bool(reason))


def two_processes() -> Collected:
    first, second = Records(begin=100.0), Records(begin=100.0)
    first.add(TURN, 100.0, exchange(101.0, [102.0, 102.5, 103.0], "b"))
    first.add(TURN, 100.0, exchange(104.0, [], "", Failure("HTTP 503", "key sk-very-secret")))
    second.add(TURN, 100.5, exchange(100.5, [101.5, 101.75], "a"))
    second.add(TURN, 100.5, exchange(103.5, [], "a", Failure("HTTP 503", "later")))
    second.add(TURN, 100.5, exchange(105.0, [], "", Failure("timeout", "not a byte")))
    return collected(result(first), result(second, busy=0.2))


def test_run_merges_the_requests_in_the_order_of_sending() -> None:
    run = run_of(two_processes(), "w", "s")
    assert list(run.sent) == [0.5, 1.0, 3.5, 4.0, 5.0]
    assert list(run.wanted) == [0.5, 0.0, 0.5, 0.0, 0.5]
    assert list(run.first[:2]) == [1.5, 2.0]
    assert list(run.succeeded) == [True, True, False, False, False]
    assert sorted(run.gaps) == [0.25, 0.5, 0.5]
    assert list(run.prompt_tokens) == [21, 21, 20, 20, 20]
    assert list(run.cached_tokens) == [16, 16, -1, -1, -1]
    assert list(run.endpoint) == [0, 1, 0, -1, -1]
    assert run.notes["endpoint_names"] == ["a", "b"]
    assert run.seconds == 3.0
    assert run.client_busy == 0.2


def test_failures_are_counted_by_kind_with_the_first_message() -> None:
    run = run_of(two_processes(), "w", "s", secrets=["sk-very-secret"])
    assert list(failures(run)) == [
        "failed: 2 x HTTP 503, first: key ***",
        "failed: 1 x timeout, first: not a byte",
    ]


def test_failures_of_the_warm_up_are_separate() -> None:
    before = Records(0.0)
    before.add(TURN, 0.0, exchange(0.0, [], failure=Failure("HTTP 429", "")))
    measured = replace(two_processes(), warm_up=[result(before)])
    run = run_of(measured, "w", "s")
    assert list(failures(run))[2] == "failed in the warm-up: 1 x HTTP 429"
    assert summarize(run).failed == 3


def test_a_run_can_be_printed_and_written() -> None:
    summary = summarize(run_of(two_processes(), "w", "s"))
    assert "Successful requests:                     2 " in block(summary)
    assert "Load spread" in more(summary)
    written = json.loads(json.dumps(as_json(summary)))
    assert written["notes"]["client"]["processes"] == 2
    assert written["load_spread"] == pytest.approx(4 / 3)


def test_run_without_requests() -> None:
    run = run_of(collected(result(Records(0.0), lags=())), "w", "s")
    assert run.seconds == 0
    assert not run.sent.size
    assert list(warnings(run)) == []
    assert isnan(summarize(run).mean_ttft_ms)


def test_peak_counts_concurrent_requests() -> None:
    assert peak(np.array([0.0, 1, 2, nan]), np.array([3.0, 2, 4, nan])) == 2
    assert peak(np.array([]), np.array([])) == 0


def good(busy: float = 0.1, lags: Sequence[float] = (0.001,)) -> Run:
    records = Records(0.0)
    records.add(TURN, 0.0, exchange(0.0, [1.0, 2.0]))
    return run_of(collected(result(records, busy, lags)), "w", "s")


def test_warns_about_a_busy_client() -> None:
    assert list(warnings(good(busy=0.69))) == []
    (warning,) = warnings(good(busy=0.83))
    assert "the client used 83% of a CPU and may limit the results" in warning
    assert "used 83% of a CPU" in client(good(busy=0.83))


def test_warns_about_a_late_event_loop() -> None:
    assert list(warnings(good(lags=[0.001] * 999 + [0.5]))) == [], "once is no warning"
    (warning,) = warnings(good(lags=[0.05] * 100))
    assert "late by 50 ms" in warning


def test_warns_about_unfinished_and_unusual_responses() -> None:
    records = Records(0.0)
    unmeasured = exchange(0.0, [1.0, 2.0])
    unmeasured.answer.usage = None
    unmeasured.streamed = False
    records.add(TURN, 0.0, unmeasured)
    part = replace(result(records), unfinished=7, retried=3)
    run = run_of(collected(part, reason="interrupted"), "w", "s")
    said = "\n".join(warnings(run))
    assert "interrupted; the results leave out 7 requests that were in flight" in said
    assert "1 responses had no usage" in said
    assert "1 responses were not streamed" in said
    assert list(run.output_tokens) == [2]
    assert run.notes["retried"] == 3


async def test_process_monitor_measures_load_and_delay() -> None:
    watch = ProcessMonitor()
    watching = asyncio.create_task(watch.run())
    await asyncio.sleep(0.1)
    end = asyncio.get_running_loop().time() + 0.3
    while asyncio.get_running_loop().time() < end:
        pass
    await asyncio.sleep(0.05)
    watching.cancel()
    seen = watch.seen()
    assert 0.02 < seen.busy <= 1
    assert max(seen.lags) > 0.2


def test_limit_of_open_files_gives_a_warning() -> None:
    assert limits.file_limit_warning(100, 100) == ""
    assert "ulimit -Hn" in limits.file_limit_warning(8_000, 1_000)
    assert limits.raise_file_limit() > 0
