from __future__ import annotations

import pytest

from extproc.adapters.vllm.readings import Failure, Result
from extproc.core.fleet.report import Load, Report
from tests.adapters.vllm.exposition.texts import COUNTERS, NAMES, exposition, read
from tests.adapters.vllm.expositions import PREAMBLE

OLD_USAGE = "vllm:gpu_cache_usage_perc"


def refused(text: str) -> str:
    """Return the reason for the failure."""
    with pytest.raises(Failure) as failure:
        read(text)
    assert failure.value.result is Result.GARBLED
    return str(failure.value)


class TestNumber:
    @pytest.mark.parametrize("missing", NAMES)
    def test_missing_one_is_a_failure(self, missing: str) -> None:
        shown = OLD_USAGE if missing == "usage" else NAMES[missing]
        assert refused(exposition(**{missing: ""})) == f"{shown} is missing"

    @pytest.mark.parametrize("name", NAMES)
    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1.0", "", "many", "1,5", "0x1"])
    def test_malformed_one_is_a_failure(self, name: str, value: str) -> None:
        assert NAMES[name] in refused(exposition(**{name: f" {value}"}))

    def test_can_have_any_notation_of_the_format(self) -> None:
        text = exposition(waiting="1.2e+01", running="  7", usage="5e-1 1795275033697")
        assert read(text) == Report(Load(12.0, 0.5), 7.0)

    def test_needs_no_labels(self) -> None:
        text = "".join(f"{name} {i / 2}\n" for i, name in enumerate(NAMES.values()))
        assert read(text) == Report(Load(0.0, 1.0), 0.5)

    def test_is_not_read_from_a_label(self) -> None:
        labels = 'a="} 9.0",b="\\"} 8.0",engine="0"'
        text = "".join(f"{name}{{{labels}}} 1.0\n" for name in NAMES.values())
        assert read(text) == Report(Load(1.0, 1.0), 1.0)

    def test_too_long_one_is_a_failure(self) -> None:
        assert "waiting" in refused(exposition(waiting="1" * 100_000))

    def test_is_not_read_from_a_comment_or_within_a_line(self) -> None:
        text = f"# {NAMES['waiting']} 5.0\n x{NAMES['waiting']} 5.0\n #\t{NAMES['waiting']} 5.0\n"
        assert "is missing" in refused(text + exposition(waiting=""))

    @pytest.mark.parametrize("sibling", ["_by_reason", "_total", "s", "_", ":x", "2"])
    def test_is_not_read_from_a_metric_with_a_longer_name(self, sibling: str) -> None:
        siblings = "".join(f'{name}{sibling}{{engine="0"}} 9.0\n' for name in NAMES.values())
        assert read(siblings + exposition(waiting="1.0") + siblings) == Report(Load(1.0, 0.0), 0.0)
        assert "is missing" in refused(siblings)

    def test_can_be_anywhere_in_the_text(self) -> None:
        assert read(exposition() + PREAMBLE + exposition(waiting="1.0", usage="1.0")).load == Load(
            1.0, 0.5
        )

    def test_is_not_read_from_a_cut_line(self) -> None:
        assert refused(exposition(usage="0.25")[:-2]) == "the exposition is cut off"

    def test_number_of_series_is_limited(self) -> None:
        assert "more than 1000 series" in refused(exposition() * 1001)
        assert "more than 1000 series" in refused(
            exposition() + f"{NAMES['running']}_x 1.0\n" * 1001
        )


@pytest.mark.parametrize("counter", COUNTERS)
class TestCounter:
    def total(self, counter: str, *values: str) -> float | None:
        """Return the total for engines with these values."""
        rows = enumerate(values)
        text = "".join(f'{COUNTERS[counter]}{{engine="{i}"}} {value}\n' for i, value in rows)
        report = read(exposition() + text)
        assert report.load == Load(0.0, 0.0)
        others = {getattr(report, name) for name in COUNTERS if name != counter}
        assert others == {None}
        total = getattr(report, counter)
        assert total is None or isinstance(total, float)
        return total

    def test_is_the_sum_over_all_engines(self, counter: str) -> None:
        assert self.total(counter, "5.0") == 5
        assert self.total(counter, "0.0", "1.5e+09") == 1.5e9

    def test_missing_one_is_none(self, counter: str) -> None:
        assert self.total(counter) is None

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1.0", "", "many", "9" * 400])
    def test_malformed_one_is_none(self, counter: str, value: str) -> None:
        assert self.total(counter, value) is None
        assert self.total(counter, "5.0", value) is None
        assert self.total(counter, value, "5.0") is None

    def test_one_that_no_engine_can_have_is_none(self, counter: str) -> None:
        assert self.total(counter, "1e308", "1e308") is None
        assert self.total(counter, "1.1e15") is None

    def test_is_not_read_from_a_metric_with_a_longer_name(self, counter: str) -> None:
        text = f"{COUNTERS[counter]}_x 5.0\n{COUNTERS[counter]}s 5.0\n# {COUNTERS[counter]} 5.0\n"
        assert getattr(read(exposition() + text), counter) is None


class TestCacheUsage:
    def test_new_name_has_priority(self) -> None:
        old = f"{OLD_USAGE} 0.75\n"
        assert read(old + exposition(usage="0.5")).load.kv_usage == 0.5
        assert read(old + exposition(usage="")).load.kv_usage == 0.75
