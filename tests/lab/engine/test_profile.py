"""Engine profiles: shipped files and files of users."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.lab.engine.profile import (
    L4_LLAMA_3_1_8B_FP8,
    Profile,
    ProfileError,
    as_fields,
    named,
    names,
)
from extproc.lab.engine.replica import Replica
from extproc.lab.workloads import Options
from extproc.lab.workloads import named as workload
from extproc.lab.workloads import names as workloads

NEEDED: dict[str, Any] = {
    "name": "mine",
    "step_base_seconds": 0.05,
    "seconds_per_context_token": 1e-6,
    "admission_seconds": 0.01,
    "prefill_tokens_per_second": 3_000,
    "kv_tokens": 50_000,
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "mine.yaml"


def loaded(place: Path, **said: Any) -> Profile:
    place.write_text(yaml.safe_dump(said))
    return named(str(place))


def refused(place: Path | str) -> str:
    """Return the error of a file, without its path."""
    with pytest.raises(ProfileError) as error:
        named(str(place))
    (line,) = str(error.value).splitlines()
    assert line.startswith(f"{place}: ")
    return line.removeprefix(f"{place}: ")


class TestShippedProfiles:
    @pytest.mark.parametrize("name", names())
    def test_load_and_make_engines(self, name: str) -> None:
        profile = named(name)
        assert profile.name
        assert Replica(profile).profile is profile

    def test_names_are_unique(self) -> None:
        assert len({named(name).name for name in names()}) == len(names()) > 1

    @pytest.mark.parametrize("name", workloads())
    def test_include_the_profile_of_every_workload(self, name: str, tmp_path: Path) -> None:
        trace = None
        if name in ("mooncake", "access-log"):
            trace = tmp_path / "trace.jsonl"
            mooncake = {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [0]}
            logged = {"time": 0, "model": "m", "output_tokens": 1, "prompt": "hello"}
            trace.write_text(json.dumps(mooncake if name == "mooncake" else logged))
        assert workload(name, Options(trace=trace, sessions=1)).profile in names()

    def test_include_the_published_replica(self) -> None:
        assert named("l4-llama-3.1-8b-fp8") == L4_LLAMA_3_1_8B_FP8


class TestFile:
    def test_needs_only_some_fields(self, place: Path) -> None:
        profile = loaded(place, **NEEDED)
        assert (profile.name, profile.kv_tokens, profile.kv_blocks) == ("mine", 50_000, 3_125)
        assert (profile.block_size, profile.max_num_seqs, profile.max_loras) == (16, 256, 0)

    def test_like_names_a_file_of_its_directory(self, place: Path) -> None:
        other = loaded(place.with_name("other.yaml"), **NEEDED, max_num_seqs=7)
        profile = loaded(place, like="other", name="changed", kv_tokens=100)
        assert profile == replace(other, name="changed", kv_tokens=100)

    def test_like_names_a_shipped_profile(self, place: Path) -> None:
        mine = loaded(place, like="l4-llama-3.1-8b-fp8", kv_tokens=100_000)
        assert mine == replace(L4_LLAMA_3_1_8B_FP8, kv_tokens=100_000)

    def test_like_may_be_nested(self, place: Path) -> None:
        loaded(place.with_name("a.yaml"), **NEEDED)
        loaded(place.with_name("b.yaml"), like="a", kv_tokens=100)
        assert loaded(place, like="b", max_num_seqs=9).kv_tokens == 100

    def test_accepts_exponents_without_a_dot(self, place: Path) -> None:
        # In YAML 1.1, a number with an exponent but without a dot is a string.
        place.write_text(yaml.safe_dump(NEEDED) + "lora_load_seconds: 5e-7\n")
        assert named(str(place)).lora_load_seconds == 5e-7

    def test_accepts_lora_fields(self, place: Path) -> None:
        profile = loaded(place, **NEEDED, max_loras=2, max_cpu_loras=2)
        assert Replica(profile).loras.in_slots == []


class TestInvalidProfile:
    def test_unknown_name_lists_the_known_ones(self) -> None:
        with pytest.raises(ProfileError) as error:
            named("l4")
        assert str(error.value) == f"unknown profile 'l4': known profiles are {', '.join(names())}"

    def test_missing_file(self, place: Path) -> None:
        assert refused(place) == "No such file or directory"

    def test_a_directory(self, tmp_path: Path) -> None:
        (tmp_path / "mine.yaml").mkdir()
        assert refused(tmp_path / "mine.yaml") == "Is a directory"

    @pytest.mark.parametrize("missing", NEEDED)
    def test_missing_field(self, missing: str, place: Path) -> None:
        place.write_text(yaml.safe_dump({k: v for k, v in NEEDED.items() if k != missing}))
        assert refused(place).startswith(f"{missing}: ")

    def test_unknown_field(self, place: Path) -> None:
        place.write_text(yaml.safe_dump({**NEEDED, "kv_token": 1}))
        assert refused(place).startswith("kv_token: ")

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("step_base_seconds", 0),
            ("step_base_seconds", -0.1),
            ("seconds_per_context_token", -1e-9),
            ("admission_seconds", float("nan")),
            ("prefill_tokens_per_second", float("inf")),
            ("prefill_tokens_per_second", "fast"),
            ("kv_tokens", 0),
            ("kv_tokens", 10.5),
            ("kv_tokens", None),
            ("block_size", -16),
            ("max_num_seqs", 0),
            ("max_loras", -1),
            ("lora_load_seconds", -0.5),
            ("name", 7),
        ],
    )
    def test_value_out_of_range(self, field: str, value: object, place: Path) -> None:
        place.write_text(yaml.safe_dump({**NEEDED, field: value}))
        assert refused(place).startswith(f"{field}: ")

    def test_token_budget_smaller_than_the_batch(self, place: Path) -> None:
        place.write_text(yaml.safe_dump({**NEEDED, "max_num_batched_tokens": 255}))
        said = refused(place)
        assert "max_num_batched_tokens (255) must be at least max_num_seqs (256)" in said

    def test_host_memory_smaller_than_the_slots(self, place: Path) -> None:
        place.write_text(yaml.safe_dump({**NEEDED, "max_loras": 4, "max_cpu_loras": 2}))
        assert "max_cpu_loras" in refused(place)

    def test_cache_smaller_than_a_block(self, place: Path) -> None:
        place.write_text(yaml.safe_dump({**NEEDED, "kv_tokens": 15}))
        assert "kv_tokens" in refused(place)

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"a profile",
            b"[name, kv_tokens]",
            b"name: [",
            b"name: a\n\tkv_tokens: 1",
            b"name: \x00",
            b"\xff\xfe\xfd",
            b"{[1]: 2}",
            b"1: 2",
        ],
    )
    def test_file_without_a_profile(self, content: bytes, place: Path) -> None:
        place.write_bytes(content)
        assert refused(place)

    def test_like_names_an_unknown_profile(self, place: Path) -> None:
        place.write_text(yaml.safe_dump({**NEEDED, "like": "tpu"}))
        assert refused(place) == "like: unknown profile 'tpu'"

    def test_like_names_the_profile_itself(self, place: Path) -> None:
        place.write_text(yaml.safe_dump({**NEEDED, "like": "mine"}))
        assert refused(place).startswith("like: ")

    def test_like_forms_a_loop(self, place: Path) -> None:
        place.with_name("other.yaml").write_text(yaml.safe_dump({**NEEDED, "like": "mine"}))
        place.write_text(yaml.safe_dump({**NEEDED, "like": "other"}))
        with pytest.raises(ProfileError, match="like: "):
            named(str(place))

    def test_like_names_an_invalid_profile(self, place: Path) -> None:
        other = place.with_name("other.yaml")
        other.write_text("name: [")
        place.write_text(yaml.safe_dump({**NEEDED, "like": "other"}))
        with pytest.raises(ProfileError, match=f"^{other}: "):
            named(str(place))


seconds = st.floats(1e-9, 1e3)
profiles = st.builds(
    Profile,
    name=st.text("abc :#'\"-[]{}\\\n\u00e9", min_size=1).filter(str.strip),
    step_base_seconds=seconds,
    seconds_per_context_token=st.just(0.0) | seconds,
    admission_seconds=st.just(0.0) | seconds,
    prefill_tokens_per_second=st.floats(1.0, 1e9),
    kv_tokens=st.integers(1_000, 10**9),
    block_size=st.sampled_from([8, 16, 32]),
    max_num_seqs=st.integers(1, 1_000),
    max_num_batched_tokens=st.integers(1_000, 10**6),
    max_loras=st.integers(0, 8),
    max_cpu_loras=st.just(0) | st.integers(8, 16),
    lora_load_seconds=st.just(0.5) | seconds,
)


@settings(deadline=None)
@given(profiles)
def test_fields_of_a_profile_make_an_equal_profile(
    tmp_path_factory: pytest.TempPathFactory, profile: Profile
) -> None:
    place = tmp_path_factory.getbasetemp() / "again.yaml"
    assert loaded(place, **as_fields(profile)) == profile


def test_fields_omit_defaults() -> None:
    assert set(as_fields(Profile(**NEEDED))) == set(NEEDED)
    everything = {one.name for one in fields(Profile)}
    assert set(as_fields(Profile(**NEEDED, max_loras=3))) == {*NEEDED, "max_loras"} < everything
