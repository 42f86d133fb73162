"""The engines of a fleet: the times and contents of their steps."""

from __future__ import annotations

import pytest

from extproc.lab.engine.profile import Profile
from extproc.lab.engine.replica import SimRequest, StepTokens
from extproc.lab.simulation.engines import Engines
from extproc.lab.simulation.timeline import Timeline
from tests.lab.simulation.builders import BLOCK, engine


class Scene:
    """Engines and their output: the time, the engine and the requests."""

    def __init__(self, profile: Profile | None = None, number: int = 1) -> None:
        self.timeline = Timeline()
        self.engines = Engines(self.timeline, profile or engine(), number)
        self.engines.on_tokens = self._note
        self.seen: list[tuple[float, int, list[int]]] = []

    def at(self, time: float, request: SimRequest, number: int = 0) -> None:
        self.timeline.at(time, lambda: self.engines.submit(number, request))

    def run(self) -> list[tuple[float, int, list[int]]]:
        self.timeline.run(lambda: False)
        return self.seen

    def _note(self, number: int, tokens: StepTokens) -> None:
        self.seen.append((self.timeline.now, number, tokens.request_ids))


def request(number: int, output: int = 1, prompt: int = 8, adapter: str = "") -> SimRequest:
    blocks = [(number, place) for place in range((prompt + output) // BLOCK)]
    return SimRequest(number, prompt, output, blocks, adapter)


def test_idle_engines_do_nothing() -> None:
    scene = Scene(number=3)
    assert scene.run() == []
    assert scene.timeline.now == 0.0


def test_a_step_takes_the_time_of_the_profile() -> None:
    scene = Scene()
    scene.at(1.0, request(7, output=3))
    # The first step admits a request, which takes an eighth more.
    assert scene.run() == [(2.125, 0, [7]), (3.125, 0, [7]), (4.125, 0, [7])]


def test_simultaneous_requests_share_a_step() -> None:
    scene = Scene()
    for number in range(3):
        scene.at(1.0, request(number))
    assert scene.run() == [(2.375, 0, [0, 1, 2])]


def test_times_to_first_tokens_include_the_wait_for_the_present_step() -> None:
    scene = Scene()
    scene.at(1.0, request(7, output=3))
    scene.at(1.5, request(8, output=3))
    assert scene.run()[:2] == [(2.125, 0, [7]), (3.25, 0, [7, 8])]
    assert scene.engines.replicas[0].first_token_seconds_total == 1.125 + 1.75


def test_a_new_engine_counts_only_its_own_times() -> None:
    scene = Scene()
    scene.at(1.0, request(7))
    scene.timeline.at(1.5, lambda: scene.engines.replace(0))
    scene.at(2.0, request(7))
    assert scene.run() == [(3.125, 0, [7])]
    assert scene.engines.replicas[0].first_token_seconds_total == 1.125


def test_a_request_during_a_step_is_in_the_next_one() -> None:
    scene = Scene()
    scene.at(0.0, request(0, output=2))
    scene.at(0.5, request(1))
    assert scene.run() == [(1.125, 0, [0]), (2.25, 0, [0, 1])]


def test_the_next_step_begins_before_the_client_reacts() -> None:
    scene = Scene()
    note = scene.engines.on_tokens

    def answer(number: int, tokens: StepTokens) -> None:
        note(number, tokens)
        if tokens.first.keys() & {0, 1}:
            scene.engines.submit(0, request(max(tokens.request_ids) + 2))

    scene.engines.on_tokens = answer
    scene.at(0.0, request(0, output=2))
    # Request 2 follows the token of 1.125. A step has already begun, so it waits for the next one.
    assert scene.run() == [(1.125, 0, [0]), (2.125, 0, [0]), (3.25, 0, [2])]


def test_an_idle_engine_starts_the_next_request_at_once() -> None:
    scene = Scene()
    note = scene.engines.on_tokens

    def answer(number: int, tokens: StepTokens) -> None:
        note(number, tokens)
        if tokens.finished == [0]:
            scene.engines.submit(0, request(1))

    scene.engines.on_tokens = answer
    scene.at(0.0, request(0))
    assert scene.run() == [(1.125, 0, [0]), (2.25, 0, [1])]


def test_each_engine_has_its_own_steps() -> None:
    scene = Scene(number=2)
    scene.at(0.0, request(0), number=1)
    scene.at(0.5, request(1), number=0)
    assert scene.run() == [(1.125, 1, [0]), (1.625, 0, [1])]


def test_an_impossible_request_is_refused_without_effect() -> None:
    scene = Scene(engine(kv_tokens=2 * BLOCK))
    with pytest.raises(ValueError, match="whole cache"):
        scene.engines.submit(0, request(0, prompt=100))
    assert scene.run() == []
    scene.at(1.0, request(1))
    assert scene.run() == [(2.125, 0, [1])]


class TestWarmAdapters:
    LORA = engine(max_loras=1, max_cpu_loras=2, lora_load_seconds=4.0, lora_activate_seconds=0.5)

    def test_are_loaded_before_the_start(self) -> None:
        scene = Scene(self.LORA, number=2)
        scene.engines.warm_adapters(["a", "b"])
        assert scene.timeline.now == 0.0
        for replica in scene.engines.replicas:
            assert set(replica.loras.in_host_memory) == {"a", "b"}
        scene.at(0.0, request(0, adapter="b"))
        scene.at(0.0, request(1, adapter="a"), number=1)
        # The second engine copies a into its slot again, from host memory.
        assert scene.run() == [(1.125, 0, [0]), (1.625, 1, [1])]

    def test_are_as_many_as_fit(self) -> None:
        scene = Scene(self.LORA)
        scene.engines.warm_adapters(["a", "b", "c"])
        assert scene.engines.replicas[0].loras.in_host_memory == ["a", "b"]
        scene.at(0.0, request(0, adapter="c"))
        assert scene.run() == [(5.625, 0, [0])]

    def test_are_none_without_lora(self) -> None:
        scene = Scene()
        scene.engines.warm_adapters(["a"])
        assert scene.run() == []
        with pytest.raises(ValueError, match="LoRA is off"):
            scene.engines.submit(0, request(0, adapter="a"))
