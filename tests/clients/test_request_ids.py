"""Request ids: the client, the access log and the sidecar's log have the same id."""

from __future__ import annotations

import pytest

from extproc.lab.stack.processes import free_port, until
from tests.clients import sdks
from tests.clients.sdk import FAST, asked, run, user
from tests.e2e.scene import Options, Scene
from tests.extent import PATIENCE

GONE = {"name": "gone", "endpoints": [f"127.0.0.1:{free_port()}"]}
OPTIONS = Options(replica_arguments=FAST, more_models=[GONE])


def is_logged(scene: Scene, request_id: str | None) -> bool:
    """Wait for a line of the access log with this id; True if there is an id."""

    def found() -> bool:
        return request_id in [line["request_id"] for line in scene.envoy.access_log()]

    run(until(found, PATIENCE, f"a line of the access log with {request_id}"))
    return request_id is not None


def test_openais_sdk_has_the_logged_id(scene: Scene, gpt: sdks.openai.OpenAI) -> None:
    chat = gpt.chat.completions.create(**asked("hello"))
    assert is_logged(scene, chat._request_id)


def test_openais_error_has_the_logged_id_of_a_refusal(
    scene: Scene, gpt: sdks.openai.OpenAI
) -> None:
    with pytest.raises(sdks.openai.NotFoundError) as error:
        gpt.chat.completions.create(model="gpt-9", messages=user("hello"))
    assert is_logged(scene, error.value.request_id)


def test_openais_error_has_the_logged_id_of_an_envoy_error(
    scene: Scene, gpt: sdks.openai.OpenAI
) -> None:
    with pytest.raises(sdks.openai.InternalServerError) as error:
        gpt.chat.completions.create(model="gone", messages=user("hello"))
    assert is_logged(scene, error.value.request_id)


def test_sidecar_logs_the_id_of_a_refusal(scene: Scene, gpt: sdks.openai.OpenAI) -> None:
    with pytest.raises(sdks.openai.NotFoundError) as error:
        gpt.chat.completions.create(model="gpt-10", messages=user("hello"))
    request_id = error.value.request_id
    assert request_id is not None
    log = scene.sidecar.error_output
    run(until(lambda: request_id in log(), PATIENCE, "the sidecar's log line"))


def test_anthropics_sdk_has_the_logged_id(scene: Scene, sonnet: sdks.anthropic.Anthropic) -> None:
    """Anthropic's SDK reads the header `request-id`, not `x-request-id`."""
    assert is_logged(scene, sonnet.messages.create(**asked("hello"))._request_id)
    with pytest.raises(sdks.anthropic.NotFoundError) as error:
        sonnet.messages.create(**asked("hello") | {"model": "gpt-9"})
    assert is_logged(scene, error.value.request_id)
