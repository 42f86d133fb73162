"""The list of workloads: every name builds, and options take effect or are refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from extproc.lab.workloads import Options, WorkloadError, described, named, names

REPLAYED = ("mooncake", "access-log")
DRAWN = [name for name in names() if name not in REPLAYED]

FINGERPRINT = """
import xxhash
from extproc.lab.workloads import Options, named
for name in ("kubeai-chat-800", "blog-2xL4", "lora-10", "saas", "codegen"):
    print(name, xxhash.xxh64_hexdigest(repr(named(name, Options(seed=3, sessions=200))).encode()))
"""


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    row = {"input_length": 700, "output_length": 10, "hash_ids": [0, 1]}
    path.write_text("".join(json.dumps({**row, "timestamp": n * 1_000}) + "\n" for n in range(5)))
    return path


@pytest.mark.parametrize("name", DRAWN)
def test_every_name_builds_the_workload_of_that_name(name: str) -> None:
    workload = named(name)
    assert workload.name == name
    assert workload.requests > 0


def test_every_name_has_a_description() -> None:
    assert list(described()) == names()
    assert all(0 < len(line) < 80 and "\n" not in line for line in described().values())


@pytest.mark.parametrize(
    ("short", "name"),
    [("kubeai-chat", "kubeai-chat-8000"), ("kubeai-threads", "kubeai-threads-1200")],
)
def test_short_names_mean_the_heaviest_run(short: str, name: str) -> None:
    assert named(short).name == name


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(
        WorkloadError, match="unknown workload 'kubeai': known workloads are kubeai-chat-800, "
    ):
        named("kubeai")


def test_workloads_are_the_same_in_every_process() -> None:
    def fingerprint(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", FINGERPRINT]
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout

    assert fingerprint("1") == fingerprint("2") != ""


class TestOptions:
    def test_the_seed_is_passed_on(self) -> None:
        assert named("saas", Options(seed=4)) != named("saas", Options(seed=5))

    def test_sessions_limits_the_sessions(self) -> None:
        few = named("lora-4", Options(sessions=7))
        assert few.sessions == named("lora-4").sessions[:7]

    def test_sessions_limits_the_warm_up_too(self) -> None:
        few = named("blog-2xL4", Options(sessions=7))
        assert (few.warm_up, len(few.sessions)) == (7, 14)
        assert few.sessions[:7] == few.sessions[7:]

    def test_concurrency_replaces_the_workloads_own(self) -> None:
        assert named("kubeai-chat-800", Options(concurrency=9)).concurrency == 9

    def test_pace_scales_a_rate(self) -> None:
        assert named("kubeai-chat-1600", Options(pace=0.5)).requests_per_second == 100

    def test_real_conversations_are_part_of_the_name(self) -> None:
        real = named("kubeai-chat-800", Options(real_conversations=True))
        assert real.name == "kubeai-chat-800-real"

    @pytest.mark.parametrize("name", REPLAYED)
    def test_a_replay_needs_a_file(self, name: str) -> None:
        with pytest.raises(WorkloadError, match=f"{name} needs the option trace"):
            named(name)

    def test_a_replay_can_be_faster_and_shorter(self, trace: Path) -> None:
        workload = named("mooncake", Options(trace=trace, pace=4.0, sessions=3))
        assert [session.start for session in workload.sessions] == [0, 0.25, 0.5]

    def test_a_trace_is_scaled_to_the_fleet(self, trace: Path) -> None:
        whole, half = (
            named("mooncake", Options(trace=trace, replicas=replicas)) for replicas in (8, 4)
        )
        assert [one.start for one in half.sessions] == [2 * one.start for one in whole.sessions]

    def test_agreement_is_passed_on(self, tmp_path: Path) -> None:
        path = tmp_path / "log.jsonl"
        line = {"time": 0, "bytes_received": 4_000, "bytes_sent": 9, "status": 200, "model": "m"}
        line |= {"path": "/v1/messages", "endpoint": "10.0.0.1:80", "prefix_hash": "f"}
        path.write_text(json.dumps(line))
        workload = named("access-log", Options(trace=path, agreement=0.0))
        assert [segment.tokens for segment in workload.sessions[0].turns[0].prompt] == [25, 975]

    @pytest.mark.parametrize(
        ("name", "options"),
        [
            ("lora-4", {"pace": 2.0}),
            ("kubeai-threads", {"pace": 2.0}),
            ("saas", {"trace": Path("some.jsonl")}),
            ("saas", {"real_conversations": True}),
            ("mooncake", {"agreement": 0.5}),
        ],
    )
    def test_an_option_without_effect_is_refused(self, name: str, options: dict[str, Any]) -> None:
        with pytest.raises(WorkloadError, match=f"{name} has no option {next(iter(options))}"):
            named(name, Options(**options))

    @pytest.mark.parametrize(
        "options",
        [{"pace": 0.0}, {"pace": float("nan")}, {"sessions": 0}, {"concurrency": -1}],
    )
    def test_values_below_one_are_refused(self, options: dict[str, Any]) -> None:
        with pytest.raises(WorkloadError, match=f"{next(iter(options))} must be more than 0"):
            named("kubeai-chat", Options(**options))

    def test_agreement_beyond_one_is_refused(self, trace: Path) -> None:
        with pytest.raises(WorkloadError, match="agreement must be from 0 to 1, not 2"):
            named("access-log", Options(trace=trace, agreement=2.0))
