"""Mooncake's trace format: blocks become segments, times become starts, bad lines are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extproc.lab.workloads.jsonl import WorkloadError
from extproc.lab.workloads.trace import mooncake
from extproc.lab.workloads.workload import Segment


def row(timestamp: int, input_length: int, hash_ids: list[int], output: int = 9) -> dict[str, Any]:
    return {
        "timestamp": timestamp,
        "input_length": input_length,
        "output_length": output,
        "hash_ids": hash_ids,
    }


CONVERSATION = [
    row(2_000, 1_000, [0, 1]),
    row(2_000, 600, [0, 2]),
    row(5_000, 1_500, [0, 1, 3]),
    row(8_000, 1_536, [0, 1, 3], output=1),
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write(tmp_path, CONVERSATION)


def write(directory: Path, rows: list[Any]) -> Path:
    path = directory / "trace.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def prompts(path: Path) -> list[tuple[Segment, ...]]:
    return [session.turns[0].prompt for session in mooncake(path).sessions]


class TestPrompts:
    def test_blocks_have_512_tokens_except_the_last(self, file: Path) -> None:
        assert [segment.tokens for segment in prompts(file)[0]] == [512, 488]
        assert [segment.tokens for segment in prompts(file)[3]] == [512, 512, 512]

    def test_lengths_match_the_trace(self, file: Path) -> None:
        workload = mooncake(file)
        assert workload.prompt_tokens == 1_000 + 600 + 1_500 + 1_536
        assert workload.output_tokens == 9 + 9 + 9 + 1

    def test_equal_ids_mean_equal_text(self, file: Path) -> None:
        first, second, third, fourth = prompts(file)
        assert first[0] == second[0] == third[0]
        assert first[1].name == third[1].name != second[1].name
        assert third[2].name == fourth[2].name

    def test_prompts_contain_no_responses(self, file: Path) -> None:
        workload = mooncake(file)
        answers = {session.turns[0].output.name for session in workload.sessions}
        assert len(answers) == 4
        assert answers.isdisjoint(segment.name for prompt in prompts(file) for segment in prompt)

    def test_the_common_prefix_is_the_system_prompt(self, file: Path) -> None:
        assert [segment.role for segment in prompts(file)[2]] == ["system", "user", "user"]

    def test_the_user_message_is_never_empty(self, tmp_path: Path) -> None:
        path = write(tmp_path, [row(0, 600, [0, 1]), row(1, 600, [0, 1])])
        assert [segment.role for segment in prompts(path)[0]] == ["system", "user"]

    def test_without_a_common_prefix_all_text_is_the_users(self, tmp_path: Path) -> None:
        path = write(tmp_path, [row(0, 100, [0]), row(1, 100, [1])])
        assert [prompt[0].role for prompt in prompts(path)] == ["user", "user"]


class TestTimes:
    def test_the_first_request_starts_the_run(self, file: Path) -> None:
        assert [session.start for session in mooncake(file).sessions] == [0, 0, 3, 6]

    def test_pace_multiplies_the_speed(self, file: Path) -> None:
        assert [session.start for session in mooncake(file, pace=0.5).sessions] == [0, 0, 6, 12]

    def test_requests_are_sorted_by_time(self, tmp_path: Path) -> None:
        path = write(tmp_path, [row(9_000, 10, [1]), row(4_000, 20, [2])])
        assert [prompt[0].tokens for prompt in prompts(path)] == [20, 10]

    def test_requests_do_not_wait_for_each_other(self, file: Path) -> None:
        assert (mooncake(file).concurrency, mooncake(file).requests_per_second) == (None, None)


class TestBadFiles:
    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match=r"absent\.jsonl: No such file"):
            mooncake(tmp_path / "absent.jsonl")

    def test_file_without_requests(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError, match="the file has no requests"):
            mooncake(write(tmp_path, []))

    @pytest.mark.parametrize(
        ("bad", "what"),
        [
            (row(0, 513, [0]), "513 makes 2 blocks of 512 tokens, but there are 1 hash_ids"),
            (row(-1, 10, [0]), "timestamp: Input should be greater than or equal to 0"),
            (row(0, 10, [0], output=0), "output_length: Input should be greater"),
            ({"timestamp": 0}, "input_length: is required; output_length: is required"),
            ([1, 2], "must be a JSON object"),
        ],
    )
    def test_a_bad_line_is_reported_with_its_problem(
        self, tmp_path: Path, bad: Any, what: str
    ) -> None:
        path = write(tmp_path, [*CONVERSATION, bad])
        with pytest.raises(WorkloadError) as caught:
            mooncake(path)
        assert str(caught.value).startswith(f"{path}:5: ")
        assert what in str(caught.value)

    def test_every_bad_line_is_reported(self, tmp_path: Path) -> None:
        path = write(tmp_path, [{}, CONVERSATION[0], {}])
        with pytest.raises(WorkloadError) as caught:
            mooncake(path)
        assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["1", "3"]

    def test_many_bad_lines_are_listed_in_part_and_counted(self, tmp_path: Path) -> None:
        with pytest.raises(WorkloadError) as caught:
            mooncake(write(tmp_path, [{}] * 50))
        lines = str(caught.value).splitlines()
        assert len(lines) == 21
        assert lines[-1].endswith("and 30 bad lines more")

    @pytest.mark.parametrize("line", [b"{", b"\xff\xfe", b"[" * 100_000, b'{"timestamp": 1'])
    def test_invalid_json_is_reported(self, tmp_path: Path, line: bytes) -> None:
        path = tmp_path / "trace.jsonl"
        path.write_bytes(line + b"\n")
        with pytest.raises(WorkloadError, match=r"trace\.jsonl:1: not JSON: .* at column \d+$"):
            mooncake(path)
