from __future__ import annotations

import asyncio

import pytest

from extproc.adapters import backoff
from extproc.adapters.kubernetes.errors import (
    ApiStatusError,
    Unreachable,
)
from extproc.adapters.kubernetes.http_api import KubernetesApi
from tests.adapters.documents import eventually
from tests.adapters.kubernetes.reflector.scenes import ConfigMaps, added, following, item, scripted
from tests.adapters.kubernetes.scripted import (
    Listed,
    ScriptedApi,
    ScriptedResponse,
    Watched,
    expired,
)

pytestmark = pytest.mark.usefixtures("quick")


class TestExpiredVersion:
    """Status 410, which a watch reports as a status or, after its start, as an event."""

    @pytest.mark.parametrize("watch", [Watched([expired()]), ApiStatusError(410, "too old"), None])
    async def test_leads_to_a_new_list(self, watch: ScriptedResponse | None) -> None:
        late = Watched([added("b", "2"), expired()])
        again = Listed("9", [item("a"), item("c")])
        async with scripted(Listed("1", [item("a")]), Watched(), watch or late, again) as (
            api,
            running,
        ):
            assert api.verbs == ["list", "watch", "watch", "list", "watch"]
            assert api.requests[-1].since == "9"
            assert running.sets[0] == {"a": ""}
            assert running.sets[-1] == {"a": "", "c": ""}
            assert all("a" in objects for objects in running.sets), "it was always there"
            assert running.watches == {"ended": 1, "expired": 1}
            assert running.reflector.trouble is None

    async def test_costs_one_list_and_the_set_is_never_empty(
        self, api: KubernetesApi, maps: ConfigMaps
    ) -> None:
        await maps.put("a", "b")
        async with following(api, maps.namespace) as running:
            await maps.watched()
            await maps.server.faults(listening=False)
            await maps.delete("a")
            await maps.put("c")
            await maps.server.compact()
            await maps.server.faults(listening=True)
            await eventually(lambda: running.latest == {"b": "", "c": ""})
            await maps.watched(3)
            assert running.sets == [{"a": "", "b": ""}, {"b": "", "c": ""}]
            assert (await maps.verbs()).count("list") == 2

    async def test_keeps_the_set_while_the_new_list_fails(self) -> None:
        failures: list[ScriptedResponse] = [
            ApiStatusError(503, "busy"),
            Unreachable("reset"),
            ApiStatusError(403, "no"),
        ]
        async with scripted(Listed("1", [item("a")]), Watched([expired()]), *failures) as (
            api,
            running,
        ):
            assert running.sets == [{"a": ""}]
            assert running.trouble == "403 no"
            assert api.verbs == ["list", "watch", "list", "list", "list", "list"]

    async def test_of_a_new_list_increases_the_backoff(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(backoff, "FIRST_SECONDS", 0.01)
        script: list[ScriptedResponse] = [Listed("1", [item("a")]), Watched([expired()])]
        api = ScriptedApi(configmaps=script * 500)
        async with following(api, "ns") as running:
            await asyncio.sleep(0.4)
            assert "410" in running.trouble
            assert 3 <= api.verbs.count("list") <= 9
            assert all(objects == {"a": ""} for objects in running.sets)
