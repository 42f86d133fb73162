from __future__ import annotations

from extproc.adapters.observability.decision_log import KEPT, DecisionLog
from extproc.core.conversation.verdict import Listed
from tests.core.builders import router


def test_keeps_the_last_verdicts_with_their_numbers() -> None:
    log = DecisionLog()
    assert list(log.after(0)) == []
    for number in range(KEPT + 50):
        log.record(Listed(), number)
    kept = list(log.after(0))
    assert [one.number for one in kept] == list(range(51, KEPT + 51))
    assert [one.seconds for one in kept] == list(range(50, KEPT + 50))
    assert all(one.age_seconds >= 0 for one in kept)
    assert [one.number for one in log.after(KEPT + 48)] == [KEPT + 49, KEPT + 50]
    assert list(log.after(log.total)) == []


def test_a_kept_decision_holds_no_lease() -> None:
    serving, log = router(), DecisionLog()
    decision = serving.decide(serving.resolve("llama", {"prompt": "x"}, {}))
    log.record(decision, 0.0)
    decision.lease.release()
    assert not serving.fleet.ledger.loads
