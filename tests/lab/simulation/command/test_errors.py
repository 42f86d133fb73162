"""Errors of `extproc simulate`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8, as_fields
from tests.lab.simulation.command.running import (
    DOCUMENT,
    FEW,
    ONE,
    Simulate,
)


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

    @pytest.mark.parametrize("flag", ["--json", "--plot", "--report"])
    @pytest.mark.parametrize("place", ["none/out.png", "."])
    def test_unwritable_output_file(
        self, flag: str, place: str, run: Simulate, tmp_path: Path
    ) -> None:
        code, _, err = run(*ONE, flag, tmp_path / place)
        assert code == 2
        (line,) = err.splitlines()
        assert line.startswith(f"extproc simulate: {tmp_path / place}: ")
