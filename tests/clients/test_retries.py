"""Retries for a model without endpoints: the SDKs wait for the time in `retry-after`."""

from __future__ import annotations

import pytest

from extproc.core.request.refusals import NoEndpoints
from extproc.lab.stack.processes import until
from tests.clients import sdks
from tests.clients.sdk import FAST, asked, claude, client, run
from tests.e2e.scene import Options, Scene
from tests.extent import PATIENCE

ASLEEP = {"name": "asleep", "endpoints": []}
OPTIONS = Options(replica_arguments=FAST, more_models=[ASLEEP])
QUESTION = asked("hello") | {"model": "asleep"}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of the SDKs in seconds; the test itself does not sleep."""
    made: list[float] = []
    for sdk in ("openai", "anthropic"):
        monkeypatch.setattr(f"{sdk}._base_client.time.sleep", made.append)
    return made


def refusals(scene: Scene) -> int:
    """Return the number of requests that the access log shows as refused with 503."""
    return sum(line["status"] == 503 for line in scene.envoy.access_log())


def were_refused(scene: Scene, expected: int) -> bool:
    """Wait for `expected` refusals in the access log; True if there are no more."""
    run(until(lambda: refusals(scene) >= expected, PATIENCE, f"{expected} refusals"))
    return refusals(scene) == expected


def test_openais_sdk_waits_before_each_retry(scene: Scene, pauses: list[float]) -> None:
    before = refusals(scene)
    with (
        client(scene, max_retries=3) as gpt,
        pytest.raises(sdks.openai.InternalServerError) as error,
    ):
        gpt.chat.completions.create(**QUESTION)
    assert error.value.status_code == 503
    assert error.value.code == "no_endpoints"
    assert pauses == [NoEndpoints.RETRY_AFTER_SECONDS] * 3
    assert were_refused(scene, before + 4)


def test_anthropics_sdk_waits_before_each_retry(scene: Scene, pauses: list[float]) -> None:
    before = refusals(scene)
    with (
        claude(scene, max_retries=3) as sonnet,
        pytest.raises(sdks.anthropic.APIStatusError) as error,
    ):
        sonnet.messages.create(**QUESTION)
    assert error.value.status_code in (503, 529)
    assert pauses == [NoEndpoints.RETRY_AFTER_SECONDS] * 3
    assert were_refused(scene, before + 4)


def test_other_models_are_served(gpt: sdks.openai.OpenAI) -> None:
    assert gpt.chat.completions.create(**asked("hello")).choices


def test_client_errors_are_not_retried(scene: Scene, pauses: list[float]) -> None:
    with client(scene, max_retries=3) as gpt, pytest.raises(sdks.openai.NotFoundError):
        gpt.chat.completions.create(**asked("hello") | {"model": "gpt-9"})
    assert not pauses
