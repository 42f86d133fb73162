from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.counted_prompts import CountedPrompts, Known
from extproc.core.fleet.report import Load, Report
from tests.core.builders import thorough

BYTES_PER_TOKEN = 2.0


class Engine:
    """An engine that counts prompts after their first tokens, and what the sidecar sends to it."""

    def __init__(self) -> None:
        self._sent = CountedPrompts()
        self._in_prefill: list[float] = []
        self._before: Report | None = None
        self._prompts = 0
        self._tokens = 0.0
        self.known: list[Known] = []

    @property
    def model(self) -> str:
        return self._sent.model

    def send(self, size: float = 2000.0, model: str = "llama", *, is_known: bool = True) -> None:
        """Send a prompt."""
        self._sent.send(model, size if is_known else None)
        self._in_prefill.append(size / BYTES_PER_TOKEN)

    def respond(self, prompts: int = 1) -> None:
        """Send the first tokens of so many prompts."""
        done, self._in_prefill = self._in_prefill[:prompts], self._in_prefill[prompts:]
        self._prompts += len(done)
        self._tokens += sum(done)

    def refuse(self) -> None:
        """End a prompt without a first token."""
        self._in_prefill.pop(0)

    def serve_others(self, prompts: int = 1, tokens: float = 50_000.0) -> None:
        """Send the first tokens of prompts that the sidecar does not know."""
        self._prompts += prompts
        self._tokens += tokens

    def read(self, *, others_in_prefill: int = 0, shows_latest: bool = True) -> None:
        """Read the metrics, which may not show what came during the last step."""
        report = Report(Load(0, 0.0), 0, first_tokens=self._prompts, responded_tokens=self._tokens)
        is_idle = not ((self._in_prefill and shows_latest) or others_in_prefill)
        known = self._sent.read(self._before, report, is_idle=is_idle)
        if known is not None:
            self.known.append(known)
        self._before = report


@pytest.fixture
def engine() -> Engine:
    """An engine that was read while it had no requests."""
    engine = Engine()
    engine.read()
    return engine


def test_are_known_if_none_is_in_progress_before_and_after(engine: Engine) -> None:
    for _ in range(3):
        engine.send(2000)
    engine.respond(3)
    engine.read()
    assert engine.known == [Known("llama", 6000, 3000)]


def test_are_known_after_several_readings_while_some_were_in_progress(engine: Engine) -> None:
    for _ in range(5):
        engine.send(2000)
        engine.read()
        engine.send(4000)
        engine.respond()
        engine.read()
    assert not engine.known
    engine.respond(5)
    engine.read()
    assert engine.known == [Known("llama", 30_000, 15_000)]


def test_are_unknown_if_some_were_in_progress_before() -> None:
    engine = Engine()
    engine.send(9000)
    engine.read()
    engine.send(2000)
    engine.respond()
    engine.refuse()  # so one was sent and one was counted, but not the same
    engine.read()
    engine.read()
    assert not engine.known


def test_are_unknown_if_the_metrics_did_not_show_some_before(engine: Engine) -> None:
    engine.send(9000)
    engine.read(shows_latest=False)
    engine.respond()
    engine.send(2000)  # so one was sent and one was counted, but not the same
    engine.read(shows_latest=False)
    assert not engine.known


def test_are_unknown_together_with_prompts_of_others(engine: Engine) -> None:
    engine.send()
    engine.respond()
    engine.serve_others()
    engine.read()
    assert not engine.known


def test_are_unknown_while_prompts_of_others_are_in_progress(engine: Engine) -> None:
    engine.send()
    engine.respond()
    engine.read(others_in_prefill=1)
    engine.serve_others()
    engine.read()
    assert not engine.known


def test_are_unknown_after_one_that_the_engine_refused(engine: Engine) -> None:
    """A later prompt of others must not be taken for it."""
    engine.send()
    engine.refuse()
    engine.read()
    engine.read()
    engine.serve_others()
    engine.read()
    assert not engine.known


def test_are_unknown_together_with_one_of_unknown_size(engine: Engine) -> None:
    engine.send(is_known=False)
    engine.send()
    engine.respond(2)
    engine.read()
    assert not engine.known


def test_are_unknown_together_with_those_of_another_model(engine: Engine) -> None:
    engine.send(model="llama")
    engine.send(model="batch")
    engine.respond(2)
    engine.read()
    assert not engine.known
    assert engine.model == "llama"


def test_are_known_again_after_all_that_made_them_unknown(engine: Engine) -> None:
    engine.send(is_known=False)
    engine.respond()
    engine.serve_others()
    engine.read()
    engine.send(2000, "batch")
    engine.respond()
    engine.read()
    assert engine.known == [Known("batch", 2000, 1000)]


@pytest.mark.parametrize("known", [None, Report(Load(0, 0.0), 0, first_tokens=5)])
def test_are_unknown_without_counters(known: Report | None) -> None:
    prompts = CountedPrompts()
    complete = Report(Load(0, 0.0), 0, first_tokens=6, responded_tokens=6000)
    prompts.read(None, complete, is_idle=True)
    prompts.send("llama", 1000)
    assert prompts.read(known, complete, is_idle=True) is None
    assert prompts.read(complete, Report(Load(0, 0.0), 0), is_idle=True) is None


@thorough
@given(st.lists(st.sampled_from(["send", "respond", "read"]), max_size=60), st.randoms())
def test_have_their_own_tokens_if_all_are_sent_by_one_sidecar(
    steps: list[str], rng: Random
) -> None:
    engine = Engine()
    for step in steps:
        if step == "send":
            engine.send(rng.randrange(1, 10_000))
        elif step == "respond":
            engine.respond(rng.randrange(1, 3))
        else:
            engine.read()
    for known in engine.known:
        assert known.bytes == pytest.approx(known.tokens * BYTES_PER_TOKEN)
