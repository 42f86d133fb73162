from __future__ import annotations

from dataclasses import replace

import pytest

from extproc.lab.demo.chat import Outcome, Run, Workload
from extproc.lab.demo.decisions import FIELDS
from extproc.lab.demo.page import log_lines, measured_run
from extproc.lab.demo.report import COLUMNS, Result, introduction, report, verdict

WIDTH = 80


def result(
    strategy: str, ttft: float, *, hits: float = 0.45, seconds: float = 21.7, failed: int = 0
) -> Result:
    """Return a run of 840 requests: `failed` fail, the others take `ttft` to the first token."""
    good = [Outcome(200, ttft, ttft + 1, 36)] * (840 - failed)
    return Result(strategy, Run(good + [Outcome(503, 0, 0, 0)] * failed, seconds), hits, 1.16)


RESULTS = [
    result("RoundRobin", 0.240),
    result("LeastLoad", 0.205, hits=0.76, seconds=12.3),
    result("PrefixHash", 0.160, hits=0.70, seconds=14.2),
    result("PrefixCache", 0.120, hits=0.83, seconds=10.85),
]
LOG: list[dict[str, object]] = [
    {
        "status": 200,
        "upstream": "127.255.255.255:65535",
        "strategy": strategy,
        "reason": reason,
        "prefix_hash": "2c742482158e3a81",
        "inflight": 1234,
        "hops": 123,
        "predicted_hit": 0.8951,
    }
    for strategy, reason in [
        ("RoundRobin", "round_robin"),
        ("PrefixHash", "bound"),
        ("PrefixCache", "cached"),
    ]
]


class TestWidth:
    SLOW = result("PrefixCache", 90, seconds=1_234.5)

    @pytest.mark.parametrize("results", [RESULTS, [RESULTS[0], SLOW]], ids=["usual", "slow"])
    def test_no_line_is_longer_than_80_columns(self, results: list[Result]) -> None:
        lines = introduction("http://127.0.0.1:65535", Workload(), WIDTH)
        lines += report(results, LOG, WIDTH)
        assert [line for line in lines if len(line) > WIDTH] == []

    def test_a_wider_terminal_shows_a_decision_on_one_line(self) -> None:
        decisions = [line for line in report(RESULTS, LOG, 200) if line.startswith("{")]
        assert len(decisions) == len(LOG)
        assert all(line.endswith("}") for line in decisions)


class TestReport:
    def test_every_column_except_the_strategy_has_a_line_in_the_legend(self) -> None:
        lines = report(RESULTS, LOG, WIDTH)
        for column in COLUMNS[1:]:
            assert [line for line in lines if line.startswith(column.title + " ")], column.title
            assert [line for line in lines if line.endswith(column.meaning)], column.title

    def test_every_field_of_a_decision_has_a_line_in_the_legend(self) -> None:
        lines = report(RESULTS, LOG, WIDTH)
        for name, meaning in FIELDS.items():
            assert [line for line in lines if line.split() == [name, *meaning.split()]], name

    def test_the_row_of_a_strategy_has_its_results(self) -> None:
        row = next(line for line in report(RESULTS, LOG, WIDTH) if line.startswith("PrefixCache "))
        assert row.split() == [
            *("PrefixCache", "120", "120", "120"),
            *("83%", "1.16", "2,787", "10.8", "0"),
        ]

    def test_shows_the_last_line_of_each_kind_of_decision(self) -> None:
        later = {**LOG[1], "inflight": 7, "prefix_hash": None}
        shown = [line for line in report(RESULTS, [*LOG, later], 200) if '"bound"' in line]
        assert len(shown) == 1
        assert '"inflight": 7' in shown[0]
        assert "prefix_hash" not in shown[0]


class TestVerdict:
    def test_names_the_fastest_strategy_and_the_default_one(self) -> None:
        assert verdict(RESULTS) == [
            "Verdict: PrefixCache answered first tokens 2.0 x sooner than RoundRobin (120 ms, not "
            "240 ms), found 83% of the prompt tokens in prefix caches (not 45%), and generated "
            "2.0 x the tokens per second.",
            "PrefixHash answered first tokens 1.5 x sooner than RoundRobin (160 ms, not 240 ms), "
            "found 70% of the prompt tokens in prefix caches (not 45%), and generated 1.5 x the "
            "tokens per second.",
        ]

    def test_names_one_strategy_if_the_default_is_the_fastest(self) -> None:
        fast = replace(RESULTS[2], run=result("PrefixHash", 0.080).run)
        (sentence,) = verdict([*RESULTS[:2], fast, RESULTS[3]])
        assert sentence.startswith("Verdict: PrefixHash answered first tokens 3.0 x sooner")

    @pytest.mark.parametrize(
        ("ttft", "words"), [(0.360, "1.5 x later than"), (0.241, "as soon as")]
    )
    def test_does_not_praise_a_default_that_is_no_faster(self, ttft: float, words: str) -> None:
        first, second = verdict([RESULTS[0], result("PrefixHash", ttft)])
        assert first == "Verdict: No strategy answered first tokens sooner than RoundRobin."
        assert second.startswith(f"PrefixHash answered first tokens {words} RoundRobin")

    def test_counts_requests_without_a_complete_response(self) -> None:
        broken = result("PrefixHash", 0.1, failed=3)
        assert verdict([RESULTS[0], broken])[-1] == "3 requests got no complete response."

    def test_stands_even_if_no_request_succeeded(self) -> None:
        lost = [result("RoundRobin", 0, failed=840), result("PrefixHash", 0, failed=840)]
        assert verdict(lost)[-1] == "1680 requests got no complete response."
        assert all(len(line) <= WIDTH for line in report(lost, [], WIDTH))


class TestMeasuredRun:
    """A run of the demo in the form of all other runs, which charts need."""

    OUTCOMES = (
        Outcome(200, 0.5, 1.5, 11, 2.0, "8002", 100, 50),
        Outcome(200, 0.1, 0.2, 1, 3.0, "8001", 200, 0),
        Outcome(503, 0, 0.1, 0, 4.0),
    )

    def test_has_the_times_of_successful_requests(self) -> None:
        run = measured_run(Result("PrefixHash", Run([*self.OUTCOMES], 5.0), 0.2, 1.0))
        assert run.sent.tolist() == [2.0, 3.0, 4.0]
        assert run.first[:2].tolist() == pytest.approx([2.5, 3.1])
        assert run.succeeded.tolist() == [True, True, False]
        assert run.gaps.tolist() == [0.1]

    def test_numbers_the_replicas_by_port(self) -> None:
        run = measured_run(Result("PrefixHash", Run([*self.OUTCOMES], 5.0), 0.2, 1.0))
        assert run.endpoint.tolist() == [1, 0, -1]
        assert run.cached_tokens.tolist() == [50, 0, -1]


def test_log_of_the_page_has_a_few_lines_of_each_kind() -> None:
    lines = log_lines(LOG[:1] * 9 + LOG[1:])
    assert [line["reason"] for line in lines] == ["round_robin"] * 5 + ["bound", "cached"]
    assert set(lines[0]) == set(FIELDS)
