"""Engines that count their times, without a clock of their own."""

from __future__ import annotations

from extproc.core.fleet.engine_counters import FEW_MEANS, LEAST_READINGS
from extproc.core.fleet.engine_times import EngineTimes
from extproc.core.fleet.report import Load, PrefillTotals, Report, StepTotals

A, B, C, D = (f"10.0.0.{one}:8000" for one in range(1, 5))
BLOCKS = 1_000
FAST, SLOW = (0.01, 0.0001), (0.03, 0.0003)
"""Seconds of a step and of a prompt token."""
BUSY = 1.0
"""Seconds of a step with long prompts. Each engine has had such steps."""


class Engine:
    """The counters of one engine, without a clock of its own."""

    def __init__(self, address: str, blocks: int = BLOCKS) -> None:
        self.address = address
        self._blocks = blocks
        self._steps = StepTotals(0, 0, 0.0, 0)
        self._prefills = PrefillTotals(0, 0.0, 0)
        self._first = PrefillTotals(0, 0.0, 0)
        self._cached = 0.0
        self._preemptions = 0.0
        self.in_prefill = 0.0

    def decode(self, seconds: float, times: int = 100) -> None:
        """Generate tokens in steps of these seconds."""
        steps, computed, before, number = self._steps
        self._steps = StepTotals(steps, computed, before + seconds * times, number + times)

    def finish(self, seconds: float, tokens: float, prompts: int = 1) -> None:
        """Finish requests whose prompts took these seconds together."""
        number, before, known = self._prefills
        self._prefills = PrefillTotals(number + prompts, before + seconds, known + tokens)

    def respond(self, seconds: float, tokens: float, cached: float, prompts: int) -> None:
        """Give requests their first tokens after these seconds together."""
        number, before, known = self._first
        self._first = PrefillTotals(number + prompts, before + seconds, known + tokens)
        self._cached += cached

    def compute(self, tokens: float) -> None:
        """Compute tokens of a prompt that has no first token yet."""
        number, before, known = self._first
        self._first = PrefillTotals(number, before, known + tokens)
        self.in_prefill = 1.0

    def preempt(self, tokens: float) -> None:
        """Compute the tokens of a preempted request again."""
        number, before, known = self._first
        self._first = PrefillTotals(number, before, known + tokens)
        self._preemptions += 1

    def restart(self) -> None:
        """Begin to count again."""
        self._steps = StepTotals(0, 0, 0.0, 0)
        self._prefills = PrefillTotals(0, 0.0, 0)
        self._first = PrefillTotals(0, 0.0, 0)

    def report(self) -> Report:
        first, seconds, tokens = self._first
        return Report(
            Load(0, 0.0),
            0,
            blocks=self._blocks,
            prompt_tokens=tokens,
            cached_tokens=self._cached,
            first_tokens=first,
            first_token_seconds=seconds,
            preemptions=self._preemptions,
            steps=self._steps._replace(computed=tokens),
            prefills=self._prefills,
        )


class Fleet:
    """Engines that are read after each event."""

    def __init__(self) -> None:
        self.times = EngineTimes()
        self.now = 0.0
        self._engines: dict[str, Engine] = {}

    def engine(self, address: str, blocks: int = BLOCKS) -> Engine:
        if address not in self._engines:
            self.start(address, blocks)
            self.decode(address, BUSY)
        return self._engines[address]

    def start(self, address: str, blocks: int = BLOCKS) -> None:
        """Read an engine that has served nothing yet."""
        self._engines[address] = Engine(address, blocks)
        self.read(address)

    def read(self, address: str) -> None:
        self.now += 0.2
        engine = self._engines[address]
        self.times.read(address, engine.report(), engine.in_prefill, self.now)

    def decode(self, address: str, seconds: float, times: int = 100) -> None:
        self.engine(address).decode(seconds, times)
        self.read(address)

    def finish(self, address: str, seconds: float, tokens: float, prompts: int = 1) -> None:
        self.engine(address).finish(seconds, tokens, prompts)
        self.read(address)

    def respond(
        self, address: str, seconds: float, tokens: float, *, cached: float = 0, prompts: int = 1
    ) -> None:
        self.engine(address).respond(seconds, tokens, cached, prompts)
        self.read(address)

    def decode_long(self, address: str, seconds: float) -> None:
        """Generate so many tokens that the steps are compared, although no prompt is known."""
        for _ in range(FEW_MEANS + 1):
            self.decode(address, seconds)

    def serve(
        self,
        address: str,
        kind: tuple[float, float],
        tokens: float = 1_000,
        requests: int = LEAST_READINGS,
    ) -> None:
        """Serve requests on an idle engine of this kind, one after the other."""
        step, token = kind
        self.decode(address, step)
        for _ in range(requests):
            self.finish(address, step + token * tokens, tokens)
