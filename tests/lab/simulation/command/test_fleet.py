"""Options of `extproc simulate` for strategies and the fleet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from extproc.core.request.blocks import BLOCK_BYTES
from extproc.lab import published_rules
from extproc.lab.engine.profile import L4_LLAMA_3_1_8B_FP8, as_fields
from extproc.lab.simulation.client import IDEAL, SINGLE_THREADED
from extproc.lab.simulation.contenders import STRATEGIES
from extproc.lab.simulation.prompts import EVERYTHING, SHIPPED
from extproc.lab.simulation.simulation import Scenario
from extproc.lab.workloads import Options, named
from tests.lab.simulation.command.running import (
    DOCUMENT,
    FEW,
    ONE,
    Simulate,
    figures,
    strategies,
)


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
        asked = ("--workload", "saas", "--sessions", 40, "--strategy", "PrefixCache", "--json")
        few, many = (
            figures(run(*asked, "--shown-bytes", n).out)[0] for n in (BLOCK_BYTES - 1, 65_536)
        )
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
