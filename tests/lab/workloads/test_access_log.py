"""The user's own traffic: values from a log, assumptions and errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from extproc.lab.workloads.access_log import access_log
from extproc.lab.workloads.envoy_line import Assumptions
from extproc.lab.workloads.jsonl import WorkloadError
from extproc.lab.workloads.workload import Segment, Turn

ENVOY: dict[str, Any] = {
    "time": "2025-03-01T12:00:00.500Z",
    "request_id": "3c1f6d0e-8d0a-4f6a-9d5e-000000000001",
    "method": "POST",
    "path": "/v1/chat/completions",
    "protocol": "HTTP/1.1",
    "status": 200,
    "flags": "-",
    "details": "via_upstream",
    "bytes_received": 4_000,
    "bytes_sent": 24_000,
    "first_byte_ms": 180,
    "duration_ms": 6_000,
    "route": "chosen",
    "upstream": "10.0.0.4:8000",
    "model": "llama",
    "adapter": "",
    "strategy": "PrefixHash",
    "endpoint": "10.0.0.4:8000",
    "reason": "prefix",
    "prefix_hash": "00000000deadbeef",
    "inflight": 3,
    "candidates": 8,
    "hops": 0,
}
"""A line that envoy/envoy.yaml makes Envoy write."""

OWN: dict[str, Any] = {"time": 10.0, "model": "llama", "prompt": "Hello.", "output_tokens": 7}


def write(directory: Path, *lines: dict[str, Any]) -> Path:
    path = directory / "requests.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def turns(path: Path, **assumed: Any) -> list[Turn]:
    workload = access_log(path, assumptions=Assumptions(**assumed))
    return [turn for session in workload.sessions for turn in session.turns]


def refusal(path: Path) -> str:
    with pytest.raises(WorkloadError) as caught:
        access_log(path)
    return str(caught.value)


def shared(one: tuple[Segment, ...], other: tuple[Segment, ...]) -> int:
    """Return the number of common tokens at the start of two prompts."""
    tokens = 0
    for a, b in zip(one, other, strict=False):
        if a.name == b.name:
            tokens += min(a.tokens, b.tokens)
        if a != b:
            break
    return tokens


class TestEnvoyLog:
    def test_prompt_tokens_are_estimated_at_four_bytes(self, tmp_path: Path) -> None:
        assert turns(write(tmp_path, ENVOY))[0].prompt_tokens == 1_000

    def test_a_streamed_response_is_measured_by_its_events(self, tmp_path: Path) -> None:
        assert turns(write(tmp_path, ENVOY))[0].output.tokens == 100

    def test_an_unstreamed_response_is_measured_by_its_text(self, tmp_path: Path) -> None:
        whole = {**ENVOY, "first_byte_ms": 5_990, "bytes_sent": 450 + 400}
        assert turns(write(tmp_path, whole))[0].output.tokens == 100

    def test_every_length_is_at_least_a_token(self, tmp_path: Path) -> None:
        empty = {**ENVOY, "bytes_received": 0, "bytes_sent": 0}
        (turn,) = turns(write(tmp_path, empty))
        assert (turn.prompt_tokens, turn.output.tokens) == (1, 1)

    def test_adapters_are_kept(self, tmp_path: Path) -> None:
        workload = access_log(write(tmp_path, ENVOY, {**ENVOY, "adapter": "sql-lora"}))
        assert workload.adapters == ["sql-lora"]

    def test_prompts_of_different_hashes_share_nothing(self, tmp_path: Path) -> None:
        one, other = turns(write(tmp_path, ENVOY, {**ENVOY, "prefix_hash": "0" * 16}))
        assert shared(one.prompt, other.prompt) == 0

    def test_prompts_without_a_hash_share_nothing(self, tmp_path: Path) -> None:
        line = {**ENVOY, "prefix_hash": None}
        one, other = turns(write(tmp_path, line, line))
        assert shared(one.prompt, other.prompt) == 0

    @pytest.mark.parametrize(("agreement", "tokens"), [(1.0, 500), (0.0, 25), (0.4, 215)])
    def test_the_agreement_of_prompts_with_one_hash_is_an_assumption(
        self, tmp_path: Path, agreement: float, tokens: int
    ) -> None:
        shorter = {**ENVOY, "bytes_received": 2_000}
        one, other = turns(write(tmp_path, ENVOY, shorter), agreement=agreement)
        assert (one.prompt_tokens, other.prompt_tokens) == (1_000, 500)
        assert shared(one.prompt, other.prompt) == tokens

    def test_the_hashed_length_is_an_assumption(self, tmp_path: Path) -> None:
        one, other = turns(write(tmp_path, ENVOY, ENVOY), agreement=0.0, prefix_characters=402)
        assert shared(one.prompt, other.prompt) == 101

    @pytest.mark.parametrize(
        "odd",
        [
            {"path": "/v1/models", "model": None, "endpoint": None},
            {"path": "/v1/embeddings"},
            {"status": 503},
            {"status": 404, "model": None, "endpoint": None},
            {"endpoint": None},
        ],
    )
    def test_requests_without_generation_are_left_out(
        self, tmp_path: Path, odd: dict[str, Any]
    ) -> None:
        assert len(turns(write(tmp_path, {**ENVOY, **odd}, ENVOY))) == 1

    def test_requests_of_clients_that_left_count(self, tmp_path: Path) -> None:
        assert len(turns(write(tmp_path, {**ENVOY, "status": 0, "first_byte_ms": None}))) == 1

    def test_a_log_without_usable_requests_is_refused(self, tmp_path: Path) -> None:
        assert "no request has both an endpoint" in refusal(
            write(tmp_path, {**ENVOY, "status": 503})
        )

    def test_unknown_fields_are_ignored(self, tmp_path: Path) -> None:
        assert len(turns(write(tmp_path, {**ENVOY, "tenant": "a"}))) == 1


class TestOwnFile:
    def test_texts_share_their_equal_blocks_of_16_tokens(self, tmp_path: Path) -> None:
        beginning = "You are a patient teacher of Latin. " * 8  # 288 characters
        lines = [{**OWN, "prompt": beginning + end} for end in ("Translate: amo.", "Decline: rex.")]
        one, other = turns(write(tmp_path, *lines))
        assert one.prompt_tokens == 76
        assert shared(one.prompt, other.prompt) == 288 // 64 * 16

    def test_a_block_after_another_prefix_differs(self, tmp_path: Path) -> None:
        same = "b" * 64
        lines = [{**OWN, "prompt": first * 64 + same} for first in ("a", "c")]
        one, other = turns(write(tmp_path, *lines))
        assert shared(one.prompt, other.prompt) == 0
        assert one.prompt[1].name != other.prompt[1].name

    def test_hashes_identify_blocks(self, tmp_path: Path) -> None:
        plain = {key: value for key, value in OWN.items() if key != "prompt"}
        one, other = turns(
            write(
                tmp_path,
                {**plain, "prefix_hashes": ["a1", "b2", "c3"]},
                {**plain, "prefix_hashes": ["a1", "b2", "d4"]},
            )
        )
        assert (one.prompt_tokens, shared(one.prompt, other.prompt)) == (48, 32)

    @pytest.mark.parametrize(
        ("prompt_tokens", "segments"),
        [(1_024, [512, 512]), (600, [512, 88]), (1_100, [512, 512, 76])],
    )
    def test_a_prompt_can_end_within_its_last_block_or_after_it(
        self, tmp_path: Path, prompt_tokens: int, segments: list[int]
    ) -> None:
        line = {
            "time": 0,
            "model": "llama",
            "prefix_hashes": [17, 23],
            "block_tokens": 512,
            "prompt_tokens": prompt_tokens,
            "output_tokens": 5,
        }
        (turn,) = turns(write(tmp_path, line))
        assert [segment.tokens for segment in turn.prompt] == segments

    def test_responses_have_the_given_length(self, tmp_path: Path) -> None:
        assert turns(write(tmp_path, OWN))[0].output.tokens == 7

    def test_the_api_follows_the_prompts(self, tmp_path: Path) -> None:
        assert access_log(write(tmp_path, OWN)).api == "completions"
        assert access_log(write(tmp_path, ENVOY)).api == "chat"
        assert (
            access_log(write(tmp_path, {**ENVOY, "path": "/v1/completions"})).api == "completions"
        )


class TestTimes:
    def test_the_earliest_request_starts_the_run(self, tmp_path: Path) -> None:
        # Envoy writes a line at the end of a request.
        lines = [{**OWN, "time": time} for time in (12.5, 10.0, 11.0)]
        assert [s.start for s in access_log(write(tmp_path, *lines)).sessions] == [0, 1, 2.5]

    def test_times_can_have_any_offset(self, tmp_path: Path) -> None:
        lines = [
            {**OWN, "time": "2025-03-01T13:00:00+01:00"},
            {**OWN, "time": "2025-03-01T12:00:04.250Z"},
        ]
        assert [s.start for s in access_log(write(tmp_path, *lines)).sessions] == [0, 4.25]

    def test_pace_multiplies_the_speed(self, tmp_path: Path) -> None:
        path = write(tmp_path, OWN, {**OWN, "time": 14.0})
        assert [session.start for session in access_log(path, pace=2).sessions] == [0, 2]


class TestBadLines:
    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"time": "yesterday"}, "time: must be seconds, or an RFC 3339 time"),
            ({"time": "2025-03-01T12:00:00"}, "time: must be seconds, or an RFC 3339 time"),
            ({"time": True}, "time: must be seconds, or an RFC 3339 time"),
            ({"time": 10**400}, "time: must be seconds, or an RFC 3339 time"),
            ({"time": float("nan")}, "time: must be seconds, or an RFC 3339 time"),
            ({"model": ""}, "model: String should have at least 1 character"),
            ({"output_tokens": 0}, "output_tokens: Input should be greater than or equal to 1"),
            ({"output_tokens": "7"}, "output_tokens: Input should be a valid integer"),
            ({"prompt": None}, "needs prompt or prefix_hashes, and not both"),
            ({"prefix_hashes": ["a"]}, "needs prompt or prefix_hashes, and not both"),
            ({"prompt": None, "prefix_hashes": []}, "prefix_hashes: List should have at least 1"),
            ({"prompt_tokens": 9}, "prompt_tokens need prefix_hashes"),
            ({"adpater": "a"}, "adpater: unknown key"),
            (
                {"prompt": None, "prefix_hashes": ["a", "b"], "prompt_tokens": 16},
                "prompt_tokens 16 do not reach into the last of 2 blocks of 16",
            ),
        ],
    )
    def test_each_is_reported_with_its_problem(
        self, tmp_path: Path, change: dict[str, Any], what: str
    ) -> None:
        path = write(tmp_path, OWN, {**OWN, **change})
        assert refusal(path).startswith(f"{path}:2: ")
        assert what in refusal(path)

    @pytest.mark.parametrize(
        ("change", "what"),
        [
            ({"bytes_received": -1}, "bytes_received: Input should be greater"),
            ({"bytes_sent": None}, "bytes_sent: Input should be a valid integer"),
            ({"time": None}, "time: must be seconds"),
        ],
    )
    def test_lines_of_envoy_are_reported_too(
        self, tmp_path: Path, change: dict[str, Any], what: str
    ) -> None:
        path = write(tmp_path, ENVOY, {**ENVOY, **change})
        assert refusal(path).startswith(f"{path}:2: ")
        assert what in refusal(path)

    def test_several_models_are_refused(self, tmp_path: Path) -> None:
        path = write(tmp_path, OWN, {**OWN, "model": "qwen"})
        assert refusal(path).startswith(f"{path}: has requests for 2 models (llama, qwen)")

    def test_missing_file(self, tmp_path: Path) -> None:
        assert "No such file" in refusal(tmp_path / "absent")
