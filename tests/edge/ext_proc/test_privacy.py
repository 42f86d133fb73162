"""Prompts are in no log, no metric and no state, except with `--log-prompts`."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Literal

import pytest

from extproc.adapters.observability import logs
from extproc.adapters.observability.decision_log import KEPT
from extproc.adapters.observability.state import model_states
from extproc.adapters.observability.status import StatusReport
from extproc.core.request.json_limits import ALWAYS_PARSED_BYTES
from extproc.edge.ext_proc.service import ExternalProcessor
from tests.core.builders import model_spec
from tests.edge.envoy import (
    DUPLEX,
    chat_request,
    request_body,
    request_headers,
    response_body,
    response_headers,
)
from tests.edge.streams import Sidecar

CANARY = "canary-of-a-very-private-matter"
LONG = f"{CANARY} " * (ALWAYS_PARSED_BYTES // 16)
Written = Callable[[], str]
LogFormat = Literal["text", "json"]


@pytest.fixture(params=["text", "json"])
def log_format(request: pytest.FixtureRequest) -> LogFormat:
    found: LogFormat = request.param
    return found


@pytest.fixture
def written(
    log_format: LogFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Written]:
    """Return everything that was logged so far."""
    root, ours = logging.getLogger(), logging.getLogger("extproc")
    before = root.handlers[:], root.level, ours.level
    file = tmp_path / "stderr"

    def read() -> str:
        logs.flush()
        assert logs.dropped() == 0
        return file.read_text()

    with file.open("w") as stderr:
        monkeypatch.setattr("sys.stderr", stderr)
        logs.configure("debug", log_format)
        root.setLevel(logging.DEBUG)
        yield read
        logs.flush()
    root.handlers[:], level, ours_level = before
    root.setLevel(level)
    ours.setLevel(ours_level)


def documents() -> Iterator[dict[str, Any]]:
    """Return requests with the canary in every place except the model's name."""
    for model in ("llama", "cache", "gpt"):
        for said in (CANARY, LONG):
            yield chat_request(model, said)
        part = {"type": "text", "text": CANARY}
        for role in ("system", "user", "assistant", "tool", CANARY):
            yield {"model": model, "messages": [{"role": role, "content": [part]}]}
        for field in ("prompt", "input", "system", "instructions", "tools", "user", CANARY):
            for value in (CANARY, [CANARY], {CANARY: CANARY}, {"name": CANARY}):
                yield {"model": model, field: value}
    for wrong in ([CANARY], {CANARY: CANARY}, None, 7):
        yield {"model": wrong, "prompt": CANARY}


def bodies() -> Iterator[bytes]:
    """Return these bodies and some malformed ones."""
    for document in documents():
        whole = json.dumps(document).encode()
        yield whole
        yield whole[: len(whole) // 2]
        yield whole + CANARY.encode()
    for broken in (
        f'"{CANARY}"',
        CANARY,
        f'["{CANARY}"]',
        f'{{"{CANARY}": tru',
        f'{{"a":"{CANARY}\\',
    ):
        yield broken.encode()
    for end in (b"\xff", b"\xed\xa0\x80", b"\\ud800", b"\x00"):
        yield b'{"model": "llama", "prompt": "%b%b"}' % (CANARY.encode(), end)
        yield b'{"model": "llama", "prompt": "%b%b"}' % (LONG.encode(), end)
    yield b'{"model": "llama", "x": %b, "prompt": "%b"}' % (
        b"[" * ALWAYS_PARSED_BYTES,
        CANARY.encode(),
    )


def test_no_prompt_is_in_logs_metrics_or_state(written: Written, log_format: LogFormat) -> None:
    # Each format sees the bodies in another mode.
    modes = {} if log_format == "text" else {"mode": DUPLEX, "response_mode": DUPLEX}
    sidecar = Sidecar(
        model_spec("llama", prefixSource="Header:x-session"),
        model_spec("cache", strategy="PrefixCache"),
    )
    secret = CANARY.encode()
    headers = {"x_session": secret, "x_prompt": secret, "authorization": secret, "cookie": secret}
    openings = [
        request_headers(path, **modes, **headers)  # type: ignore[arg-type]
        for path in ("/v1/chat/completions", "/v1/embeddings", "/v1/audio/transcriptions")
    ]
    response = response_headers(), response_body(secret, end=True)
    tried = 0
    for body in bodies():
        for shown in (request_body(body, end=True), request_body(body, end=False)):
            for opening in openings:
                sidecar.serve(opening, shown, *response)
                tried += 1
        logs.flush()
    logged = written()
    assert tried > 1000
    assert "routed" in logged
    assert "refused" in logged
    assert CANARY not in logged
    assert CANARY not in sidecar.telemetry.exposition().decode()
    assert CANARY not in json.dumps(model_states(sidecar.router.fleet, sidecar.router.catalog))
    assert CANARY not in status(sidecar)


def status(sidecar: Sidecar) -> str:
    """Return the data of the status page, with the last requests."""
    router = sidecar.router
    report = StatusReport(
        *(router.fleet, lambda: router.catalog, sidecar.telemetry),
        lambda _: model_states(router.fleet, router.catalog),
        lambda: None,
    )
    document = report.document("", 0)
    assert len(document["decisions"]["new"]) == KEPT
    return json.dumps(document)


@pytest.mark.parametrize("name", ["extproc.grpc", "grpc._cython.cygrpc", "asyncio"])
def test_exception_is_logged_without_the_text_that_it_quotes(name: str, written: Written) -> None:
    try:
        f"{CANARY}\ud800".encode()
    except UnicodeEncodeError:
        logging.getLogger(name).exception("call failed")
    logged = written()
    assert "UnicodeEncodeError" in logged
    assert "Traceback" in logged
    assert "test_privacy.py" in logged
    assert CANARY not in logged.replace("test_privacy", "")


@pytest.mark.parametrize("strategy", ["PrefixHash", "PrefixCache"])
@pytest.mark.parametrize("mode", [{}, {"mode": DUPLEX}])
def test_log_prompts_shows_the_text_behind_the_decision(
    strategy: str, mode: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    sidecar = Sidecar(model_spec(strategy=strategy, prefixCharLength=len(CANARY)))
    sidecar.processor = ExternalProcessor(
        sidecar.router, sidecar.telemetry, Random(0), log_prompts=True
    )
    with caplog.at_level(logging.DEBUG, "extproc.requests"):
        body = request_body(chat_request("llama", CANARY + " and more"))
        sidecar.serve(request_headers(**mode), body)
        sidecar.serve(request_headers(**mode), request_body({"model": "llama"}))
    said = [record.__dict__["fields"]["prefix"] for record in caplog.records]
    assert said == [CANARY, ""]


def test_log_prompts_without_debug_level_shows_no_prompt(
    caplog: pytest.LogCaptureFixture,
) -> None:
    sidecar = Sidecar()
    sidecar.processor = ExternalProcessor(
        sidecar.router, sidecar.telemetry, Random(0), log_prompts=True
    )
    with caplog.at_level(logging.INFO, "extproc.requests"):
        sidecar.serve(request_headers(), request_body(chat_request("llama", CANARY)))
    assert not caplog.records
