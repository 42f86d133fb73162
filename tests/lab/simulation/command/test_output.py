"""Output of `extproc simulate`: tables, JSON and plots."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8, as_fields
from extproc.lab.simulation.contenders import STRATEGIES
from tests.lab.simulation.command.running import (
    FEW,
    ONE,
    Simulate,
    figures,
)


class TestTables:
    def test_show_the_benchmark_block_of_each_strategy(self, run: Simulate) -> None:
        code, out, err = run(*FEW, "--strategy", "Random", "LeastLoad")
        assert (code, err) == (0, "")
        assert out.count(" Serving Benchmark Result ") == 2
        assert out.count("Successful requests:") == 2
        for strategy in ("Random", "LeastLoad"):
            assert f"{strategy} on 8 x {L4_LLAMA_3_1_8B_FP8.name}" in out

    def test_name_the_engine_by_its_profile(self, run: Simulate, tmp_path: Path) -> None:
        mine = tmp_path / "mine.yaml"
        mine.write_text(yaml.safe_dump({**as_fields(L4_LLAMA_3_1_8B_FP8), "name": "L4 [fp8]"}))
        assert "Random on 8 x L4 [fp8]\n" in run(*ONE, "--profile", mine).out

    def test_show_published_figures_if_there_are_any(self, run: Simulate) -> None:
        whole = run("--workload", "kubeai-chat-800", "--strategy", "PrefixHash").out
        assert "kubeai-chat-800, PrefixHash (published as KubeAI - Prefix Hash)" in whole
        assert "published" not in run(*FEW, "--strategy", "LowLatency").out

    def test_omit_published_figures_of_other_runs(self, run: Simulate) -> None:
        assert "published" not in run(*ONE).out

    def test_end_with_a_comparison(self, run: Simulate) -> None:
        lines = run(*FEW, "--strategy", "Random", "LeastLoad", "PrefixHash").lines
        rows = [line for line in lines[-3:] if len(line) == 11]
        assert [row[0] for row in rows] == ["Random", "LeastLoad", "PrefixHash"]
        # The last two columns compare with the first row.
        assert rows[0][-2:] == ["1.00", "1.000"]

    def test_are_complete_without_a_terminal_width(self, run: Simulate) -> None:
        assert "…" not in run(*FEW, "--strategy", ",".join(STRATEGIES)).out

    def test_count_failed_requests_with_a_reason(self, run: Simulate, tmp_path: Path) -> None:
        small = tmp_path / "small.yaml"
        small.write_text(yaml.safe_dump({**as_fields(L4_LLAMA_3_1_8B_FP8), "kv_tokens": 640}))
        outcome = run(*ONE, "--profile", small)
        (failed,) = [line[2] for line in outcome.lines if line[:2] == ["Failed", "requests:"]]
        assert int(failed) > 0
        assert "the whole cache holds 640" in outcome.out

    @pytest.mark.filterwarnings("error")
    def test_are_printed_if_all_requests_fail(self, run: Simulate, tmp_path: Path) -> None:
        tiny = tmp_path / "tiny.yaml"
        tiny.write_text(yaml.safe_dump({**as_fields(L4_LLAMA_3_1_8B_FP8), "kv_tokens": 16}))
        outcome = run(*ONE, "--profile", tiny)
        assert outcome.code == 1
        assert outcome.err == "extproc simulate: no request was served\n"
        assert ["Successful", "requests:", "0"] in outcome.lines


class TestJson:
    @pytest.mark.parametrize("flags", [("--json",), ("--json", "-")])
    def test_replaces_the_tables_on_stdout(self, flags: tuple[str, ...], run: Simulate) -> None:
        code, out, err = run(*FEW, "--strategy", "Random,LeastLoad", *flags)
        assert (code, err) == (0, "")
        runs = figures(out)
        assert [one["strategy"] for one in runs] == ["Random", "LeastLoad"]
        assert all((one["completed"], one["failed"]) == (5, 0) for one in runs)
        assert all(one["mean_ttft_ms"] > 0 for one in runs)

    def test_in_a_file_leaves_the_tables(self, run: Simulate, tmp_path: Path) -> None:
        path = tmp_path / "figures.json"
        code, out, _ = run(*ONE, "--json", path)
        assert code == 0
        assert "Serving Benchmark Result" in out
        (one,) = figures(path.read_text())
        assert one["workload"] == "kubeai-chat-800"

    def test_has_null_for_missing_figures(self, run: Simulate, tmp_path: Path) -> None:
        tiny = tmp_path / "tiny.yaml"
        tiny.write_text(yaml.safe_dump({**as_fields(L4_LLAMA_3_1_8B_FP8), "kv_tokens": 16}))
        (one,) = figures(run(*ONE, "--profile", tiny, "--json").out)
        assert (one["completed"], one["mean_ttft_ms"]) == (0, None)
        assert "mean_session_ms" not in one["notes"]


class TestPlot:
    def test_is_a_png_file(self, run: Simulate, tmp_path: Path) -> None:
        path = tmp_path / f"{'long/' * 30}chart.png"
        path.parent.mkdir(parents=True)
        code, out, err = run(*ONE, "--plot", path)
        assert (code, err) == (0, "")
        assert path.read_bytes().startswith(b"\x89PNG\r\n")
        assert f"drawn: {path}" in out

    def test_does_not_change_the_json(self, run: Simulate, tmp_path: Path) -> None:
        code, out, err = run(*ONE, "--plot", tmp_path / "chart.png", "--json")
        assert code == 0
        assert figures(out)
        assert "chart.png" in err


class TestReport:
    def test_is_a_web_page_that_names_its_source(self, run: Simulate, tmp_path: Path) -> None:
        path = tmp_path / "report.html"
        code, out, err = run(*ONE, "--report", path)
        assert (code, err) == (0, "")
        assert f"report: {path}" in out
        text = path.read_text()
        assert text.startswith("<!doctype html>")
        assert "Source: extproc simulate, workload " in text


def test_help_lists_workloads_and_profiles(run: Simulate) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "kubeai-chat-8000" in out
    assert "h100-llama-3.1-70b" in out
