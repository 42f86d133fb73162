"""Command `extproc simulate`: its output, its options, its errors and its interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pytest
import yaml

from extproc.lab import published_rules
from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8, as_fields
from extproc.lab.measures import published
from extproc.lab.measures.run import Run
from extproc.lab.simulation import command
from extproc.lab.simulation.client import IDEAL, SINGLE_THREADED
from extproc.lab.simulation.contenders import STRATEGIES
from extproc.lab.simulation.prompts import EVERYTHING, SHIPPED
from extproc.lab.simulation.simulation import Scenario, simulate
from extproc.lab.workloads import Options, named

Capture = pytest.CaptureFixture[str]

FEW = ("--workload", "kubeai-chat-800", "--sessions", "5")
PUBLISHED = str(Path(published.__file__).with_name("published") / "kubeai-chat.yaml")
ONE = (*FEW, "--strategy", "Random")

DOCUMENT = """
models:
- name: llama
  endpoints: [192.0.2.1:8000, 192.0.2.2:8000, 192.0.2.3:8000]
  loadBalancing: {strategy: PrefixHash, prefixHash: {meanLoadFactor: 150, prefixCharLength: 500}}
- name: canary
  split: {targets: [{model: llama, weight: 9}, {model: chained, weight: 1}]}
- name: chained
  service: {namespace: models, name: vllm, port: http}
  loadBalancing: {strategy: Chain, chain: [{filter: LeastQueue, slack: 3}]}
"""


class Outcome(NamedTuple):
    code: object
    out: str
    err: str

    @property
    def lines(self) -> list[list[str]]:
        """Return the words of each printed line."""
        return [line.split() for line in self.out.splitlines() if line.strip()]


Simulate = Callable[..., Outcome]


@pytest.fixture
def fleets(monkeypatch: pytest.MonkeyPatch) -> list[Scenario]:
    """Collect the simulated scenarios. They run in this process, which is faster."""
    asked: list[Scenario] = []

    def simulate_all(scenarios: Sequence[Scenario], progress: object = None) -> list[Run]:
        asked.extend(scenarios)
        return [simulate(one) for one in scenarios]

    monkeypatch.setattr(command, "simulate_all", simulate_all)
    monkeypatch.delenv("COLUMNS", raising=False)
    return asked


@pytest.fixture
def run(fleets: list[Scenario], capsys: Capture) -> Simulate:
    def main(*arguments: object) -> Outcome:
        code: object
        try:
            code = command.main([str(one) for one in arguments])
        except SystemExit as exit_:
            code = exit_.code
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return main


@pytest.fixture
def refused(run: Simulate) -> Callable[..., str]:
    """Return a function that runs a command with bad arguments and returns its line on stderr."""

    def main(*arguments: object) -> str:
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        (line,) = err.splitlines()
        assert line.startswith("extproc simulate: ")
        return line.removeprefix("extproc simulate: ")

    return main


@pytest.fixture
def document(tmp_path: Path) -> Path:
    path = tmp_path / "models.yaml"
    path.write_text(DOCUMENT)
    return path


def no_constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def figures(text: str) -> list[dict[str, Any]]:
    """Return the runs in a JSON output."""
    found: list[dict[str, Any]] = json.loads(text, parse_constant=no_constant)["runs"]
    return found


def strategies(fleets: list[Scenario]) -> list[str]:
    return [one.routing.load_balancing.strategy for one in fleets]


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


class TestStrategies:
    def test_default_to_those_of_the_published_tables(
        self, run: Simulate, fleets: list[Scenario]
    ) -> None:
        run(*FEW)
        assert strategies(fleets) == ["Random", "LeastLoad", "PrefixHash"]

    @pytest.mark.parametrize(
        "flags",
        [
            ("--strategy", "LeastQueue,Random"),
            ("--strategy", "LeastQueue", "Random"),
            ("--strategy", "LeastQueue,", ",Random"),
            ("--strategy", "LeastQueue", "--strategy", "Random"),
        ],
    )
    def test_can_be_separated_by_spaces_or_commas(
        self, flags: tuple[str, ...], run: Simulate, fleets: list[Scenario]
    ) -> None:
        assert run(*FEW, *flags).code == 0
        assert strategies(fleets) == ["LeastQueue", "Random"]

    def test_can_be_any_that_needs_no_parameters(
        self, run: Simulate, fleets: list[Scenario]
    ) -> None:
        assert run(*FEW, "--strategy", *STRATEGIES).code == 0
        assert strategies(fleets) == list(STRATEGIES)
        assert "Chain" not in strategies(fleets)


class TestPublishedRules:
    def test_can_be_compared_with_strategies(self, run: Simulate, fleets: list[Scenario]) -> None:
        code, out, _ = run(*FEW, "--strategy", "LeastLoad", *published_rules.names())
        assert code == 0
        assert [one.routing.strategy for one in fleets] == ["LeastLoad", *published_rules.names()]
        for name in published_rules.names():
            assert f"{name} on 8 x {L4_LLAMA_3_1_8B_FP8.name}" in out

    def test_see_more_than_strategies_do(self, run: Simulate, fleets: list[Scenario]) -> None:
        run(*FEW, "--strategy", "PrefixCache,LMetric")
        ours, theirs = fleets
        assert (ours.routing.shown, ours.answers_shown) == (SHIPPED, False)
        assert (theirs.routing.shown, theirs.answers_shown) == (EVERYTHING, True)

    def test_have_their_own_list_in_the_help(self, run: Simulate) -> None:
        out = " ".join(run("--help").out.split())
        assert f"published rules, for comparison: {', '.join(published_rules.names())}" in out

    def test_are_unknown_to_a_models_document(
        self, document: Path, refused: Callable[..., str]
    ) -> None:
        document.write_text(DOCUMENT.replace("strategy: PrefixHash", "strategy: LMetric"))
        said = refused(*FEW, "--models", document)
        assert said.startswith(f"{document}: models[0].loadBalancing.strategy: ")


class TestShownBytes:
    def test_limit_all_bodies(self, run: Simulate, fleets: list[Scenario]) -> None:
        flags = ("--strategy", "PrefixCache,LMetric,Random", "--shown-bytes", 4_096)
        assert run(*FEW, *flags).code == 0
        assert {one.routing.shown for one in fleets} == {(4_096, 4_096)}

    def test_limit_the_followed_prefix(self, run: Simulate) -> None:
        asked = ("--workload", "saas", "--sessions", 60, "--strategy", "PrefixCache", "--json")
        few, many = (figures(run(*asked, "--shown-bytes", n).out)[0] for n in (512, 65_536))
        assert few["hit_rate"] < many["hit_rate"]

    @pytest.mark.parametrize("flags", [(), ("--strategy", "Random,PrefixHash")])
    def test_are_refused_by_strategies_that_read_no_prompts(
        self, flags: tuple[str, ...], refused: Callable[..., str]
    ) -> None:
        said = refused(*FEW, *flags, "--shown-bytes", 9)
        assert said == "--shown-bytes: none of these strategies reads prompts"


class TestModels:
    def test_set_strategy_parameters_and_engines(
        self, document: Path, run: Simulate, fleets: list[Scenario]
    ) -> None:
        assert run(*FEW, "--models", document).code == 0
        (fleet,) = fleets
        assert strategies(fleets) == ["PrefixHash"]
        keys = fleet.routing.load_balancing.prefix_hash
        assert (keys.mean_load_factor, keys.prefix_char_length) == (150, 500)
        assert fleet.replicas == 3
        assert list(fleet.routing.endpoints(3)) == [f"192.0.2.{n}:8000" for n in (1, 2, 3)]

    def test_set_a_chain_that_the_flag_cannot_name(
        self, document: Path, run: Simulate, fleets: list[Scenario]
    ) -> None:
        assert run(*FEW, "--models", document, "--model", "chained").code == 0
        (fleet,) = fleets
        (one,) = fleet.routing.load_balancing.chain
        assert (one.filter, one.slack, fleet.replicas) == ("LeastQueue", 3, 8)

    def test_set_parameters_of_other_strategies_too(
        self, document: Path, run: Simulate, fleets: list[Scenario]
    ) -> None:
        flags = ("--models", document, "--model", "chained", "--strategy", "Chain,PrefixHash")
        assert run(*FEW, *flags).code == 0
        assert strategies(fleets) == ["Chain", "PrefixHash"]
        assert not fleets[1].routing.load_balancing.chain
        run(*FEW, "--models", document, "--strategy", "PrefixHash", "LeastLoad")
        for fleet in fleets[2:]:
            assert fleet.routing.load_balancing.prefix_hash.mean_load_factor == 150

    def test_can_use_the_session_header(
        self, document: Path, run: Simulate, fleets: list[Scenario]
    ) -> None:
        keys = "prefixHash: {prefixSource: 'Header:X-Session'}"
        document.write_text(DOCUMENT.replace("prefixHash: {meanLoadFactor: 150", keys[:-1]))
        assert run(*FEW, "--models", document).code == 0
        assert fleets[0].routing.load_balancing.prefix_hash.header == "x-session"

    def test_cannot_use_other_headers(self, document: Path, refused: Callable[..., str]) -> None:
        keys = "prefixHash: {prefixSource: 'Header:x-user'"
        document.write_text(DOCUMENT.replace("prefixHash: {meanLoadFactor: 150", keys))
        assert refused(*FEW, "--models", document) == (
            f"{document}: 'prefixSource' Header:x-user does not read x-session, "
            "the only header of simulated requests"
        )

    def test_can_use_sessions_with_that_header_as_source(
        self, document: Path, run: Simulate, refused: Callable[..., str]
    ) -> None:
        keys = "prefixHash: {prefixSource: Session"
        document.write_text(DOCUMENT.replace("prefixHash: {meanLoadFactor: 150", keys))
        assert refused(*FEW, "--models", document) == (
            f"{document}: 'prefixSource' Session does not read x-session, "
            "the only header of simulated requests"
        )
        keys += ", sessionSources: ['Header:x-session']"
        document.write_text(DOCUMENT.replace("prefixHash: {meanLoadFactor: 150", keys))
        assert run(*FEW, "--models", document).code == 0

    def test_can_be_simulated_with_another_number_of_engines(
        self, document: Path, run: Simulate, fleets: list[Scenario]
    ) -> None:
        assert run(*FEW, "--models", document, "--replicas", 5).code == 0
        assert fleets[0].replicas == 5


class TestOptions:
    def test_default_to_the_workloads_own(self, run: Simulate, fleets: list[Scenario]) -> None:
        run("--workload", "blog-2xL4", "--sessions", "2", "--strategy", "LeastLoad")
        (fleet,) = fleets
        assert fleet.workload == named("blog-2xL4", Options(sessions=2))
        assert (fleet.replicas, fleet.sidecars, fleet.seed, fleet.client) == (2, 1, 0, IDEAL)
        assert fleet.profile.kv_tokens == 24_500

    def test_change_the_fleet(self, run: Simulate, fleets: list[Scenario], tmp_path: Path) -> None:
        profile = tmp_path / "mine.yaml"
        profile.write_text(yaml.safe_dump({**as_fields(L4_LLAMA_3_1_8B_FP8), "kv_tokens": 9_999}))
        flags = ("--replicas", 3, "--sidecars", 2, "--profile", profile, "--seed", 7)
        assert run(*ONE, *flags).code == 0
        (fleet,) = fleets
        assert (fleet.replicas, fleet.sidecars, fleet.seed) == (3, 2, 7)
        assert fleet.profile.kv_tokens == 9_999
        assert fleet.workload == named("kubeai-chat-800", Options(seed=7, sessions=5))

    def test_change_the_workload(self, run: Simulate, fleets: list[Scenario]) -> None:
        flags = ("--concurrency", 2, "--pace", 0.5, "--real-conversations")
        assert run(*ONE, *flags).code == 0
        asked = fleets[0].workload
        assert (asked.concurrency, asked.requests_per_second) == (2, 400)
        assert (asked.name, asked.requests) == ("kubeai-chat-800-real", 5)

    def test_take_adapters_from_the_workload(self, run: Simulate, fleets: list[Scenario]) -> None:
        run("--workload", "lora-4", "--sessions", 30, "--strategy", "LoraQueue")
        assert fleets[0].routing.adapters == [f"adapter-{n}" for n in range(4)]

    def test_include_or_leave_out_the_published_client(
        self, run: Simulate, fleets: list[Scenario]
    ) -> None:
        run(*ONE)
        run(*ONE, "--ideal-client")
        assert [one.client for one in fleets] == [SINGLE_THREADED, IDEAL]

    def test_the_seed_determines_the_figures(self, run: Simulate) -> None:
        seeds = (1, 2, 1)
        outputs = [figures(run(*ONE, "--json", "-", "--seed", seed).out) for seed in seeds]
        assert outputs[0] == outputs[2] != outputs[1]

    def test_a_trace_is_replayed(
        self, run: Simulate, fleets: list[Scenario], tmp_path: Path
    ) -> None:
        trace = tmp_path / "log.jsonl"
        lines = ({"time": n, "model": "m", "output_tokens": 3, "prompt": "hello"} for n in range(4))
        trace.write_text("\n".join(map(json.dumps, lines)))
        flags = ("--trace", trace, "--pace", 10, "--agreement", 0.5, "--strategy", "LeastLoad")
        assert run("--workload", "access-log", *flags).code == 0
        assert [one.start for one in fleets[0].workload.sessions] == [0, 0.1, 0.2, 0.3]


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "says"),
        [
            ((), "give --workload NAME"),
            (
                ("--workload", "kubeai"),
                "unknown workload 'kubeai': known workloads are kubeai-chat-800",
            ),
            (("--workload",), "argument --workload: expected one argument"),
            ((*FEW, "--fast"), "unrecognized arguments: --fast"),
            ((*FEW, "--strategy"), "argument --strategy: expected at least one argument"),
            (
                (*FEW, "--strategy", "Best"),
                "--strategy: 'Best' is not one of PrefixHash, PrefixCache",
            ),
            ((*FEW, "--strategy", "Random,best"), "--strategy: 'best' is not one of"),
            ((*FEW, "--strategy", "Chain"), "--strategy: 'Chain' is not one of"),
            ((*FEW, "--strategy", ","), "--strategy"),
            ((*FEW, "--strategy", ""), "--strategy"),
            ((*ONE, "--replicas", "0"), "argument --replicas: '0' is not a number above 0"),
            ((*ONE, "--replicas", "many"), "argument --replicas: 'many' is not a number above 0"),
            ((*ONE, "--sidecars", "-1"), "argument --sidecars"),
            ((*ONE, "--shown-bytes", "0"), "argument --shown-bytes: '0' is not a number above 0"),
            (
                (*ONE, "--shown-bytes", "64K"),
                "argument --shown-bytes: '64K' is not a number above 0",
            ),
            ((*ONE, "--sessions", "0"), "argument --sessions: '0' is not a number above 0"),
            (
                (*ONE, "--concurrency", "1.5"),
                "argument --concurrency: '1.5' is not a number above 0",
            ),
            ((*ONE, "--seed", "x"), "argument --seed: "),
            ((*ONE, "--pace", "0"), "argument --pace: '0' is not a number above 0"),
            ((*ONE, "--pace", "nan"), "argument --pace: 'nan' is not a number above 0"),
            ((*ONE, "--pace", "fast"), "argument --pace: "),
            ((*ONE, "--trace", "x.jsonl"), "the workload kubeai-chat-800 has no option trace"),
            ((*ONE, "--agreement", "0.5"), "the workload kubeai-chat-800 has no option agreement"),
            (("--workload", "saas", "--real-conversations"), "no option real_conversations"),
            (("--workload", "mooncake"), "the workload mooncake needs the option trace"),
            (("--workload", "mooncake", "--trace", "/none"), "/none: No such file or directory"),
            ((*ONE, "--profile", "l4"), "unknown profile 'l4': known profiles are a10-llama-2-7b"),
            ((*ONE, "--profile", "/none.yaml"), "/none.yaml: No such file or directory"),
            ((*ONE, "--models", "/none.yaml"), "/none.yaml: No such file or directory"),
        ],
    )
    def test_are_one_line(
        self, arguments: tuple[str, ...], says: str, refused: Callable[..., str]
    ) -> None:
        assert says in refused(*arguments)

    @pytest.mark.parametrize("model", ["gpt", "canary"])
    def test_model_without_servers_in_the_document(
        self, model: str, document: Path, refused: Callable[..., str]
    ) -> None:
        said = refused(*FEW, "--models", document, "--model", model)
        assert said == f"{document}: unknown model {model!r}: known models are llama, chained"

    def test_invalid_document(self, document: Path, refused: Callable[..., str]) -> None:
        document.write_text(DOCUMENT.replace("meanLoadFactor: 150", "meanLoadFactor: 5"))
        said = refused(*FEW, "--models", document)
        assert said.startswith(f"{document}: models[0].loadBalancing.prefixHash.meanLoadFactor: ")

    @pytest.mark.parametrize(
        "changed",
        [{"kv_tokens": 5}, {"max_loras": 4, "max_cpu_loras": 2}, {"max_num_batched_tokens": 1}],
    )
    def test_invalid_profile(
        self, changed: dict[str, int], refused: Callable[..., str], tmp_path: Path
    ) -> None:
        path = tmp_path / "bad.yaml"
        path.write_text(yaml.safe_dump({**as_fields(L4_LLAMA_3_1_8B_FP8), **changed}))
        assert refused(*ONE, "--profile", path).startswith(f"{path}: ")

    @pytest.mark.parametrize("flag", ["--json", "--plot"])
    @pytest.mark.parametrize("place", ["none/out.png", "."])
    def test_unwritable_output_file(
        self, flag: str, place: str, run: Simulate, tmp_path: Path
    ) -> None:
        code, _, err = run(*ONE, flag, tmp_path / place)
        assert code == 2
        (line,) = err.splitlines()
        assert line.startswith(f"extproc simulate: {tmp_path / place}: ")


def test_help_lists_workloads_and_profiles(run: Simulate) -> None:
    code, out, _ = run("--help")
    assert code == 0
    assert "kubeai-chat-8000" in out
    assert "h100-llama-3.1-70b" in out


def workers(of: int) -> list[int]:
    """Return the processes that another one has started, once they have loaded numpy."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            if parent != of or b"spawn_main" not in entry.joinpath("cmdline").read_bytes():
                continue
            if "numpy" in entry.joinpath("maps").read_text():
                found.append(int(entry.name))
        except OSError:
            continue  # the process has ended
    return found


def interrupt_only_the_parent(pid: int) -> None:
    os.kill(pid, signal.SIGINT)


def interrupt_as_a_terminal_does(pid: int) -> None:
    """Interrupt all of its processes at once; it notices last, in any state."""
    os.kill(pid, signal.SIGSTOP)
    os.killpg(pid, signal.SIGINT)
    time.sleep(0.5)
    os.kill(pid, signal.SIGCONT)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="finds processes in /proc")
@pytest.mark.parametrize(
    ("asked", "interrupt"),
    [
        (("--workload", "saas"), interrupt_only_the_parent),
        (("--workload", "saas"), interrupt_as_a_terminal_does),
        (("--calibrate", PUBLISHED), interrupt_as_a_terminal_does),
    ],
)
def test_an_interrupt_ends_all_its_processes_quietly(
    asked: tuple[str, ...], interrupt: Callable[[int], None]
) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "extproc", "simulate", *asked],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        at_work: list[int] = []
        try:
            while len(at_work) < min(2, os.cpu_count() or 1):
                assert process.poll() is None
                time.sleep(0.02)
                at_work = workers(process.pid)
            interrupt(process.pid)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "")
    assert not [pid for pid in at_work if Path(f"/proc/{pid}").exists()]


def test_the_command_itself_runs_in_several_processes() -> None:
    command = [sys.executable, "-m", "extproc", "simulate", *FEW, "--strategy", "Random,LeastLoad"]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [one["strategy"] for one in figures(done.stdout)] == ["Random", "LeastLoad"]
