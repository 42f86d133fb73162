"""A watch that is silent, although its connection responds to PINGs."""

from __future__ import annotations

import pytest

from extproc.adapters.kubernetes import watch_events
from extproc.adapters.kubernetes.api import ALIVE
from extproc.adapters.kubernetes.errors import Unreachable
from extproc.adapters.kubernetes.watch_events import BookmarkWatchdog
from tests.adapters.kubernetes.reflector.scenes import added, scripted
from tests.adapters.kubernetes.scripted import Listed, Watched, bookmark

pytestmark = pytest.mark.usefixtures("quick")


class TestReflector:
    async def test_watches_again_if_bookmarks_stop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch_events, "BOOKMARK_SECONDS", -1.0)
        silent = Watched([bookmark("2"), ALIVE], stays_open=True)
        async with scripted(Listed("1"), silent) as (api, running):
            assert running.watches == {"unreachable": 1}
            assert running.trouble.startswith("no bookmark in")
            assert api.requests[-1].since == "2"

    async def test_watches_on_if_the_server_sends_no_bookmarks(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch_events, "BOOKMARK_SECONDS", -1.0)
        async with scripted(Listed("1"), Watched([added("a", "2"), ALIVE, ALIVE])) as (_, running):
            assert running.watches == {"ended": 1}


class TestWatchdog:
    def test_is_satisfied_by_any_event_after_a_bookmark(self) -> None:
        watchdog = BookmarkWatchdog()
        watchdog.received("ADDED", 0.0)
        watchdog.check(10_000.0)
        watchdog.received("BOOKMARK", 10_000.0)
        watchdog.received("MODIFIED", 10_100.0)
        watchdog.check(10_100.0 + watch_events.BOOKMARK_SECONDS)
        with pytest.raises(Unreachable, match="no bookmark in 150 s"):
            watchdog.check(10_101.0 + watch_events.BOOKMARK_SECONDS)
