from __future__ import annotations

from pathlib import Path

from extproc.lab.pages.reliability import OUTCOMES, PAGE, Outcome, Scoreboard, update

KILLED = Outcome("killed", "nothing", "3 kills", "0 failed", "held", 12.3)
FROZEN = Outcome("frozen", "nothing", "a | b", "2\nfailed", "not held", 4)


def test_a_new_outcome_replaces_only_the_old_one_of_its_fault(tmp_path: Path) -> None:
    update(tmp_path, [KILLED, FROZEN])
    again = Outcome("killed", "nothing", "12 kills", "0 failed", "held", 60)
    update(tmp_path, [again])
    board = Scoreboard.read(tmp_path / OUTCOMES)
    assert board.text() == (tmp_path / PAGE).read_text()
    assert "12 kills" in board.text()
    assert "3 kills" not in board.text()


def test_missed_promises_are_bold_and_pipes_are_escaped() -> None:
    text = Scoreboard([KILLED, FROZEN]).text()
    assert "| `killed` | nothing | 3 kills | 0 failed | held | 12 |" in text
    assert "| `frozen` | nothing | a \\| b | 2 failed | **not held** | 4 |" in text
    assert "**2 faults: 1 held, 0 known weaknesses, 1 not held.**" in text


def test_repeated_texts_of_one_test_are_left_out() -> None:
    outcomes = [Outcome(f"spoofed[{n}]", "safe", "10 headers", f"{n}", "held", 1) for n in (1, 2)]
    text = Scoreboard([outcomes[0], FROZEN, outcomes[1]]).text()
    assert (
        "| `spoofed[1]` | safe | 10 headers | 1 | held | 1 |\n"
        "| `spoofed[2]` |  |  | 2 | held | 1 |\n"
        "| `frozen` | nothing |"
    ) in text
