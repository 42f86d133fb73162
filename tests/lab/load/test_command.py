"""The command's arguments, output and exit codes, with a mocked run."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from extproc.lab.load import command, limits, parent, target
from extproc.lab.load.exchange import Exchange
from extproc.lab.load.messages import Progress, Result
from extproc.lab.load.parent import Collected
from extproc.lab.load.process_monitor import ProcessLoad
from extproc.lab.load.records import Records
from extproc.lab.load.response import Response, Usage
from extproc.lab.load.shares import Plan
from extproc.lab.stack.processes import free_port
from extproc.lab.workloads.workload import Segment, Turn

SERVER = ("--url", "http://127.0.0.1:8000", "--model", "llama", "--processes", "3")
WHOLE = (*SERVER, "--workload", "lora-0", "--strategy", "LeastRequest")


def collected() -> Collected:
    answer = Response("chat", keep=False)
    answer.event(b'{"choices":[{"delta":{"content":"x"}}]}', 1.5)
    answer.usage = Usage(20, 1, 16)
    exchange = Exchange(answer, Mock())
    exchange.sent, exchange.streamed = 1.0, True
    records = Records(0.0)
    records.add(Turn((Segment("q", 20),), Segment("a", 1, "assistant")), 1.0, exchange)
    watched = ProcessLoad(0.83, 0.9, array("d", [0.001]), 1.0)
    return Collected([Result(records, watched, 0, 0, 1, 10**7)], [], "", False)


@pytest.fixture
def plans(monkeypatch: pytest.MonkeyPatch) -> list[Plan]:
    """The plans that the command ran."""
    seen: list[Plan] = []

    async def run(
        plan: Plan, begins: Callable[[int], None], report: Callable[[Progress], None]
    ) -> Collected:
        seen.append(plan)
        for number in range(len(plan.phases)):
            begins(number)
            report(Progress(1, 1, 1, 1))
        return collected()

    monkeypatch.setattr(parent, "run", run)
    monkeypatch.setattr(target, "reachable_addresses", lambda *_: ("127.0.0.1",))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return seen


def run(*arguments: str) -> int:
    return command.main(arguments)


@pytest.mark.usefixtures("plans")
def test_prints_the_results_and_a_warning_about_the_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(*WHOLE) == 0
    out, err = capsys.readouterr()
    assert out.startswith("============ Serving Benchmark Result ============\n")
    assert "client: 1 processes, the busiest used 83% of a CPU" in out
    assert err.startswith("extproc load: the client used 83% of a CPU and may limit")


@pytest.mark.usefixtures("plans")
def test_prints_the_published_row_for_an_unchanged_workload_only(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run(*WHOLE)
    assert "published" in capsys.readouterr().out
    for changed in (["--sessions", "10"], ["--concurrency", "10"], ["--strategy", "Mine"]):
        run(*WHOLE, *changed)
        assert "published" not in capsys.readouterr().out


def test_passes_the_arguments_to_the_plan(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    arguments = ["--concurrency", "30", "--timeout", "7", "--no-ignore-eos", "--no-keep-alive"]
    run(*WHOLE, *arguments, "--sessions", "100", "--endpoint-header", "X-Pod")
    (plan,) = plans
    assert [share.streams for share in plan.shares] == [10, 10, 10]
    assert plan.phases == [100]
    options = plan.shares[0].options
    assert (options.style.model, options.style.ignore_eos) == ("llama", False)
    assert (options.timeout, options.keep_alive) == (7, False)
    assert options.target.endpoint_headers == ("x-pod",)
    assert options.target.headers == {"authorization": "Bearer sk-environment"}


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ([], "Bearer sk-environment"),
        (["--api-key", "sk-flag"], "Bearer sk-flag"),
        (["-H", "Authorization: Basic abc"], "Basic abc"),
    ],
)
def test_prefers_a_given_key_over_the_environment(
    plans: list[Plan], monkeypatch: pytest.MonkeyPatch, given: list[str], sent: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-environment")
    run(*WHOLE, *given)
    assert plans[0].shares[0].options.target.headers["authorization"] == sent


@pytest.mark.usefixtures("plans")
def test_prints_only_json_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*WHOLE, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["completed"] == 1


@pytest.mark.usefixtures("plans")
def test_prints_the_results_if_a_file_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*WHOLE, "--json", str(tmp_path)) == 1
    out, err = capsys.readouterr()
    assert "Successful requests:                     1 " in out
    assert err.splitlines()[-1] == f"extproc load: {tmp_path}: Is a directory"


@pytest.mark.usefixtures("plans")
def test_warns_if_the_limit_of_open_files_is_too_low(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(limits, "raise_file_limit", lambda: 5)
    run(*WHOLE)
    assert "a process can open 5 streams here" in capsys.readouterr().err


def test_interrupt_before_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(target, "reachable_addresses", Mock(side_effect=KeyboardInterrupt))
    assert run(*WHOLE) == 130
    assert capsys.readouterr().err == "extproc load: interrupted\n"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--url", "nonsense", "--workload", "saas"], "'nonsense' is not a URL"),
        (["--url", "http://127.0.0.1:{free}", "--workload", "saas"], "cannot connect to http"),
        (["--url", "http://127.0.0.1:1", "--workload", "nope"], "unknown workload 'nope'"),
        (["--url", "http://h", "--workload", "saas", "-H", "a: \x07"], "header 'a'"),
        (["--url", "http://h", "--workload", "saas", "--json", "/no/dir/x"], "no such directory"),
    ],
)
def test_reports_bad_input_in_one_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    free = free_port()
    assert run("--model", "m", *(one.format(free=free) for one in arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("extproc load: ")
    assert complaint in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        *[("--pace", "0"), ("--pace", "nan"), ("--pace", "x"), ("--concurrency", "-1")],
        *[("--sessions", "1.5"), ("--timeout", "inf"), ("--processes", "0"), ("-H", "secret")],
    ],
)
def test_refuses_invalid_values(
    argument: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as raised:
        run(*WHOLE, argument, value)
    assert raised.value.code == 2
    assert "secret" not in capsys.readouterr().err


def test_refuses_a_workload_whose_sessions_fork(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*SERVER, "--workload", "sub-agents") == 2
    assert "sub-agents has forks" in capsys.readouterr().err
