"""Option `--calibrate`: from a measured table back to the engine that produced it."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.core.schema import LoadBalancingSpec
from extproc.lab.engine import profile
from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8, Profile, as_fields
from extproc.lab.measures.serving import Summary, summarize
from extproc.lab.simulation import calibrate
from extproc.lab.simulation import command as simulate
from extproc.lab.simulation.calibrate import PARAMETERS, WEIGHTS
from extproc.lab.simulation.client import IDEAL, SINGLE_THREADED
from extproc.lab.simulation.simulation import Scenario
from extproc.lab.simulation.simulation import simulate as simulated
from extproc.lab.workloads import Options, named
from tests.extent import extent

Capture = pytest.CaptureFixture[str]

START = L4_LLAMA_3_1_8B_FP8
TRUTH = replace(
    START, step_base_seconds=0.06, admission_seconds=0.02, prefill_tokens_per_second=2_500.0
)
SESSIONS = extent(25, 75)


def measured(strategy: str, engine: Profile, workload: str = "kubeai-chat-800") -> Summary:
    asked = named(workload, Options(sessions=SESSIONS))
    balancing = LoadBalancingSpec.model_validate({"strategy": strategy})
    return summarize(simulated(Scenario.of(asked, engine, balancing)))


def row(strategy: str = "Random", **other: Any) -> dict[str, Any]:
    return {"strategy": strategy, "label": "x", "metrics": {"mean_itl_ms": 60.0}, **other}


def table(*rows: dict[str, Any], **other: Any) -> dict[str, Any]:
    asked = {"workload": "kubeai-chat-800", "sessions": 8, "source": "here", "fitted": False}
    return {**asked, "rows": list(rows), **other}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "table.yaml"


class InThisProcess(ProcessPoolExecutor):
    """Executor that works in this process, which starts faster."""

    def submit(self, work: Callable[..., Any], /, *given: Any, **named: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(work(*given, **named))
        return done


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the fit short, for tests of the steps around it."""
    monkeypatch.setattr(calibrate, "workers", lambda tasks: InThisProcess())
    monkeypatch.setattr(calibrate, "_ROUNDS", 1)


def off(engine: Profile, rows: list[dict[str, Any]]) -> float:
    """Return the largest factor between an engine's figures and the rows'."""
    factors: list[float] = []
    for one in rows:
        summary = measured(one["strategy"], engine)
        for metric, theirs in one["metrics"].items():
            ours = summary.metric(metric)
            assert ours is not None
            factors.append(max(ours / theirs, theirs / ours))
    return max(factors)


def test_a_fit_recovers_the_measured_engine(place: Path, capsys: Capture) -> None:
    rows = []
    for strategy in ("Random", "PrefixHash"):
        summary = measured(strategy, TRUTH)
        metrics = {name: summary.metric(name) for name in WEIGHTS if summary.metric(name)}
        rows.append(row(strategy, metrics=metrics))
    place.write_text(yaml.safe_dump([table(*rows, sessions=SESSIONS)]))

    assert simulate.main(["--calibrate", str(place)]) == 0
    out, err = capsys.readouterr()

    # The report has the error of each attempt: the first is the start, and no end is worse.
    shares = [float(share) for share in re.findall(r"off by ([\d.]+)%", err)]
    assert len(shares) == len(err.splitlines()) > 2
    assert min(shares) < shares[0] / 4

    # The output is a profile with the final figures in its comment.
    place.with_name("fitted.yaml").write_text(out)
    fitted = profile.named(str(place.with_name("fitted.yaml")))
    head = [line for line in out.splitlines() if line.startswith("#")]
    assert [line.split()[2] for line in head[1:]] == ["Random:", "PrefixHash:"]
    assert off(fitted, rows) < 1.1 < off(START, rows)

    # The parameters with the most evidence are closer now, and other fields have not changed.
    for name in ("step_base_seconds", "prefill_tokens_per_second"):
        truth, start, found = (getattr(one, name) for one in (TRUTH, START, fitted))
        assert abs(found / truth - 1) < abs(start / truth - 1) / 2
    kept = {name: getattr(START, name) for name in PARAMETERS}
    assert replace(fitted, name=START.name, **kept) == START


@pytest.mark.usefixtures("quick")
class TestStart:
    def test_is_the_workloads_own_profile(self, place: Path, capsys: Capture) -> None:
        place.write_text(yaml.safe_dump([table(row(), workload="lora-0")]))
        assert simulate.main(["--calibrate", str(place)]) == 0
        fitted = yaml.safe_load(capsys.readouterr().out)
        assert fitted["name"].startswith(profile.named("a10-llama-2-7b").name)

    def test_can_be_another_profile(self, place: Path, capsys: Capture) -> None:
        place.write_text(yaml.safe_dump([table(row())]))
        mine = place.with_name("mine.yaml")
        mine.write_text(yaml.safe_dump({**as_fields(START), "name": "mine"}))
        assert simulate.main(["--calibrate", str(place), "--profile", str(mine)]) == 0
        assert yaml.safe_load(capsys.readouterr().out)["name"] == "mine, fitted to table.yaml"

    @pytest.mark.parametrize("name", ["L4: mine", "8", "yes", "an 'L4' # 2", "- x", "é"])
    def test_can_have_any_name(self, name: str, place: Path, capsys: Capture) -> None:
        place.write_text(yaml.safe_dump([table(row())]))
        mine = place.with_name("mine.yaml")
        mine.write_text(yaml.safe_dump({**as_fields(START), "name": name}))
        assert simulate.main(["--calibrate", str(place), "--profile", str(mine)]) == 0
        mine.write_text(capsys.readouterr().out)
        assert profile.named(str(mine)).name == f"{name}, fitted to {place.name}"

    def test_can_have_parameters_of_zero(self, place: Path, capsys: Capture) -> None:
        place.write_text(yaml.safe_dump([table(row())]))
        mine = place.with_name("mine.yaml")
        mine.write_text(yaml.safe_dump({**as_fields(START), "seconds_per_context_token": 0}))
        assert simulate.main(["--calibrate", str(place), "--profile", str(mine)]) == 0
        assert yaml.safe_load(capsys.readouterr().out)["seconds_per_context_token"] == 0


@pytest.mark.usefixtures("quick")
class TestTable:
    @pytest.fixture
    def fleets(self, monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
        """Collect the simulated scenarios."""
        asked: list[Scenario] = []

        def simulate(scenario: Scenario) -> Any:
            asked.append(scenario)
            return simulated(scenario)

        monkeypatch.setattr(calibrate, "simulate", simulate)
        return asked

    def test_can_contain_several_workloads_and_other_fleets(
        self, place: Path, fleets: list[Scenario]
    ) -> None:
        tables = [
            table(
                row("Random"),
                row("LeastLoad"),
                replicas=3,
                concurrency=5,
                limited_client=True,
                sessions=8,
            ),
            table(row("PrefixHash"), workload="kubeai-threads-300", sessions=4),
        ]
        place.write_text(yaml.safe_dump(tables))
        assert simulate.main(["--calibrate", str(place)]) == 0
        seen = [
            (one.workload.name, one.routing.load_balancing.strategy, one.replicas)
            for one in fleets[:3]
        ]
        assert seen == [
            ("kubeai-chat-800", "Random", 3),
            ("kubeai-chat-800", "LeastLoad", 3),
            ("kubeai-threads-300", "PrefixHash", 8),
        ]
        assert fleets[0].workload.concurrency == 5
        assert (fleets[0].client, fleets[2].client) == (SINGLE_THREADED, IDEAL)

    def test_can_contain_repeated_rows(self, place: Path, fleets: list[Scenario]) -> None:
        place.write_text(yaml.safe_dump([table(row(), row(second_run=True))]))
        assert simulate.main(["--calibrate", str(place)]) == 0
        # The start, a step of each parameter, and the output.
        assert len(fleets) == 1 + len(PARAMETERS) + 1

    def test_can_contain_adapters(self, place: Path, fleets: list[Scenario]) -> None:
        place.write_text(yaml.safe_dump([table(row("LoraQueue"), workload="lora-4", sessions=12)]))
        assert simulate.main(["--calibrate", str(place)]) == 0
        assert fleets[0].routing.adapters == [f"adapter-{n}" for n in range(4)]


@pytest.mark.usefixtures("quick")
class TestErrors:
    def refused(self, place: Path, capsys: Capture) -> str:
        """Return the error message, which is one line."""
        assert simulate.main(["--calibrate", str(place)]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        (line,) = err.splitlines()
        assert line.startswith("extproc simulate: ")
        return line.removeprefix("extproc simulate: ")

    def test_missing_file(self, place: Path, capsys: Capture) -> None:
        assert self.refused(place, capsys) == f"{place}: No such file or directory"

    @pytest.mark.parametrize("content", [b"", b"[", b"a: 1", b"[1]", b"\xff\xfe\xfd", b"[]"])
    def test_file_without_a_table(self, content: bytes, place: Path, capsys: Capture) -> None:
        place.write_bytes(content)
        assert self.refused(place, capsys).startswith(f"{place}: ")

    @pytest.mark.parametrize(
        ("changed", "says"),
        [
            ({"workload": "kubeai"}, "unknown workload 'kubeai'"),
            ({"workload": "mooncake"}, "the workload mooncake needs the option trace"),
            ({"sessions": 0}, "sessions: Input should be greater than or equal to 1"),
            ({"concurrency": -1}, "concurrency: Input should be greater than or equal to 1"),
            ({"replicas": -1}, "replicas"),
            ({"replicas": "many"}, "0.replicas: "),
            ({"rows": []}, "0.rows: "),
            ({"rows": [{"strategy": "Random"}]}, "0.rows.0.label: "),
            ({"rows": [row(metrics={"itl": 60.0})]}, "'itl' is not the name of a metric"),
            ({"rows": [row(metrics={"duration": 60.0})]}, "no row has one of mean_itl_ms, "),
            ({"rows": [row(second_run=True)]}, ""),
            ({"rows": [row("Best")]}, "Best"),
            ({"rows": [row("Chain")]}, "Chain"),
            ({"rows": [row(metrics={"mean_itl_ms": -60.0})]}, "mean_itl_ms"),
            ({"rows": [row(metrics={"mean_itl_ms": float("nan")})]}, "mean_itl_ms"),
            ({"rows": [row(metrics={"mean_itl_ms": float("inf")})]}, "mean_itl_ms"),
        ],
    )
    def test_impossible_table(
        self, changed: dict[str, Any], says: str, place: Path, capsys: Capture
    ) -> None:
        place.write_text(yaml.safe_dump([{**table(row()), **changed}]))
        assert says in self.refused(place, capsys)

    def test_unknown_profile(self, place: Path, capsys: Capture) -> None:
        place.write_text(yaml.safe_dump([table(row())]))
        assert simulate.main(["--calibrate", str(place), "--profile", "l4"]) == 2
        assert "unknown profile 'l4'" in capsys.readouterr().err
