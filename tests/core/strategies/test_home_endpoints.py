"""The endpoints on which sidecars that share no state agree for a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.core.fleet.endpoint import Snapshot
from extproc.core.request.blocks import Prompt
from extproc.core.strategies import Query
from extproc.core.strategies.home_endpoints import PLACES, HomeEndpoints, Homes
from tests.core.builders import endpoints
from tests.core.strategies.prefix_cache_replicas import Replicas, key, prompt, query, rules

POPULAR, RARE, SHORT = rules("popular", 3200), rules("rare", 3200), rules("short", 320)
FLEET = Snapshot.of(endpoints(16), 256)


def system(of: Prompt) -> int:
    assert of.system_hash is not None
    return of.system_hash


def homes_of(
    homes: HomeEndpoints,
    asked: Query,
    *,
    everywhere: bool = False,
    alone: bool = False,
    kv_usage: float = 0.0,
) -> Homes:
    assert asked.prompt is not None
    return homes.of(asked, asked.prompt, 16, everywhere=everywhere, alone=alone, kv_usage=kv_usage)


def having_sent(popular: int, rare: int = 0, *, by_header: bool = False) -> HomeEndpoints:
    """Return the home endpoints after requests with these system prompts."""
    homes = HomeEndpoints(Random(0), by_header=by_header)
    for after, count in ((POPULAR, popular), (RARE, rare)):
        for number in range(count):
            homes.sent(prompt(f"sent {number}", 200, after=after), 0)
    return homes


class TestKey:
    def test_is_the_system_prompt(self) -> None:
        asked = query("session", after=RARE)
        assert homes_of(having_sent(0), asked) == Homes(system(RARE))
        assert homes_of(having_sent(90, 10), asked) == Homes(system(RARE))

    def test_is_the_sessions_if_the_system_prompt_is_short(self) -> None:
        asked = query("session", after=SHORT)
        assert homes_of(having_sent(0), asked) == Homes(key("session"))

    def test_is_the_sessions_once_all_endpoints_have_the_system_prompt(self) -> None:
        found = homes_of(having_sent(0), query("session", after=RARE), everywhere=True)
        assert found == Homes(key("session"))

    def test_is_the_sessions_if_it_has_a_header_or_an_id(self) -> None:
        asked = query("session", after=RARE)
        assert homes_of(having_sent(0, by_header=True), asked) == Homes(key("session"))
        assert homes_of(having_sent(0), asked._replace(session=True)) == Homes(key("session"))

    def test_is_the_sessions_if_the_system_prompt_needs_more_endpoints(self) -> None:
        asked = query("session", after=POPULAR)
        assert homes_of(having_sent(20, 80), asked).key == key("session")
        assert homes_of(having_sent(10, 90), asked).key == system(POPULAR)

    @pytest.mark.parametrize(
        ("share", "kv_usage", "has_history", "is_sessions"),
        [
            (10, 0.4, True, True),
            (4, 0.4, True, False),
            (10, 0.2, True, False),
            (10, 0.4, False, False),
        ],
    )
    def test_is_the_sessions_if_few_endpoints_cannot_keep_its_history(
        self, share: int, kv_usage: float, has_history: bool, is_sessions: bool
    ) -> None:
        asked = query("session", after=RARE)
        assert asked.prompt is not None
        if has_history:
            blocks = asked.prompt.system_blocks + 1
            asked = asked._replace(prompt=asked.prompt._replace(previous_blocks=blocks))
        found = homes_of(having_sent(100 - share, share), asked, kv_usage=kv_usage)
        near = Homes(key("session"), system(RARE), number=2)
        assert found == (near if is_sessions else Homes(system(RARE)))

    def test_stays_the_system_prompt_without_other_sidecars(self) -> None:
        asked = query("session", after=POPULAR)
        assert homes_of(having_sent(100), asked, alone=True) == Homes(system(POPULAR))

    def test_is_random_without_any(self) -> None:
        asked = query("session", after=SHORT)._replace(key=None)
        assert len({homes_of(having_sent(0), asked).key}) == 1
        homes = having_sent(0)
        assert homes_of(homes, asked) != homes_of(homes, asked)


class TestSessionsOfAPopularSystemPrompt:
    def met(self, homes: HomeEndpoints, name: str) -> list[str]:
        found = homes_of(homes, query(name, after=POPULAR))
        return [one.name for one in found.walk(FLEET, "", {})]

    @pytest.mark.parametrize(("popular", "needed"), [(20, 4), (25, 5), (30, 6)])
    def test_meet_on_as_many_endpoints_as_it_needs(self, popular: int, needed: int) -> None:
        homes = having_sent(popular, 100 - popular)
        near = [one.name for one in FLEET.walk(system(POPULAR), "")][:needed]
        met = [self.met(homes, f"session {number}") for number in range(100)]
        assert {one[0] for one in met} == set(near)
        assert all(set(one) == set(near) for one in met)

    @pytest.mark.parametrize("popular", [50, 100])
    def test_meet_on_all_endpoints_if_it_needs_most(self, popular: int) -> None:
        homes = having_sent(popular, 100 - popular)
        met = [self.met(homes, f"session {number}") for number in range(200)]
        assert {one[0] for one in met} == {one.name for one in FLEET.endpoints}

    @given(st.integers(20, 38), st.integers(20, 38))
    def test_move_only_to_endpoints_that_are_new_or_from_those_that_left(
        self, one: int, other: int
    ) -> None:
        fewer, more = (having_sent(n, 100 - n) for n in sorted((one, other)))
        for number in range(20):
            before, after = (self.met(homes, f"session {number}") for homes in (fewer, more))
            assert set(before) <= set(after)
            assert after[0] == before[0] or after[0] not in before


class TestMixedFleet:
    SLOW, *OTHERS = (endpoint.address for endpoint in FLEET.endpoints)
    KEYS = tuple(key(f"session {number}") for number in range(4800))

    def met(self, home: int, slow: float) -> list[str]:
        """Return the endpoints if one endpoint keeps this share of the prompts."""
        shares = dict.fromkeys(self.OTHERS, 1.0) | {self.SLOW: slow}
        return [one.address for one in Homes(home).walk(FLEET, "", shares)]

    @pytest.mark.parametrize("share", [0.25, 0.5])
    def test_slow_endpoint_is_the_home_of_fewer_prompts(self, share: float) -> None:
        before = [one for one in self.KEYS if self.met(one, 1.0)[0] == self.SLOW]
        after = [one for one in self.KEYS if self.met(one, share)[0] == self.SLOW]
        assert set(after) < set(before)
        assert len(after) == pytest.approx(share * len(before), abs=20)

    def test_others_have_the_same_home_endpoints(self) -> None:
        for one in self.KEYS[:100]:
            before, after = self.met(one, 1.0), self.met(one, 0.1)
            assert [place for place in after if place != self.SLOW] == [
                place for place in before if place != self.SLOW
            ]

    def test_slow_endpoint_comes_last_for_prompts_that_it_does_not_keep(self) -> None:
        assert {self.met(one, 0.0)[-1] for one in self.KEYS[:100]} == {self.SLOW}

    def test_the_endpoints_of_a_system_prompt_stay_the_same(self) -> None:
        near = [one.address for one in FLEET.walk(system(POPULAR), "")][:4]
        shares = dict.fromkeys(near[:3], 0.0)
        for one in self.KEYS[:100]:
            found = Homes(one, system(POPULAR), 4).walk(FLEET, "", shares)
            first, *others = (endpoint.address for endpoint in found)
            assert (first, set(others)) == (near[3], set(near[:3]))


class TestPopularity:
    def test_fades_as_others_are_sent(self) -> None:
        homes = having_sent(1000)
        asked = query("session", after=POPULAR)
        assert homes_of(homes, asked).key == key("session")
        for number in range(600):
            homes.sent(prompt(f"later {number}", 200, after=RARE), 0)
        assert homes_of(homes, asked).key == system(POPULAR)

    def test_takes_bounded_memory(self) -> None:
        homes = HomeEndpoints(Random(0), by_header=False)
        for number in range(5000):
            homes.sent(rules(f"rules {number}", 640), 0)
        assert len(homes._before) + len(homes._present) <= 512


def test_turns_of_an_agents_session_meet_behind_sidecars_that_share_nothing() -> None:
    """Two sidecars get the turns of each session in turn, and see no request of the other."""
    sidecars = [Replicas(8), Replicas(8)]
    talks = {
        f"session {number}": prompt(f"session {number}", 400, after=POPULAR) for number in range(24)
    }
    went: dict[str, list[str]] = {name: [] for name in talks}
    for turn in range(6):
        for name, so_far in talks.items():
            one, other = sidecars[turn % 2], sidecars[1 - turn % 2]
            best = one.serve(Query(key=key(name), prompt=so_far)).endpoint
            went[name].append(best.address)
            for replicas in (one, other):
                for endpoint in replicas.snapshot.endpoints:
                    replicas.scrape(endpoint, running=2)
                replicas.clock.now += 1
            talks[name] = prompt(f"{name}, turn {turn}", 800, after=so_far)
    assert sum(len(set(places)) == 1 for places in went.values()) > 20
    assert len({places[-1] for places in went.values()}) > PLACES


@pytest.mark.parametrize(("kv_usage", "is_spread"), [(0.5, True), (0.1, False)])
def test_sessions_spread_over_the_endpoints_of_their_agent_where_caches_are_filled(
    kv_usage: float, *, is_spread: bool
) -> None:
    """Another sidecar has sent the previous turn of each session."""
    replicas = Replicas(16)
    for endpoint in replicas.snapshot.endpoints:
        for _ in range(5):
            replicas.scrape(endpoint, running=4, kv_usage=kv_usage)
    for number in range(180):
        replicas.serve(Query(prompt=prompt(f"other {number}", 400)))
    for number in range(20):
        replicas.serve(query(f"new {number}", 400, after=RARE))
    replicas.clock.now += 1  # the mean usage is read at intervals
    first = set()
    for number in range(20):
        asked = query(f"session {number}", 8_000, after=RARE)
        assert asked.prompt is not None
        previous = asked.prompt._replace(previous_blocks=len(asked.prompt.blocks) - 1)
        first.add(replicas.first(asked._replace(prompt=previous)).endpoint)
    assert (len(first) > 1) == is_spread


class TestRepeatedShare:
    LONG = prompt("long", 6400)
    BLOCKS = len(LONG.blocks)

    def after(self, repeated: Sequence[int], *, others: float = 0.0) -> float:
        """Return the share after prompts of which so many blocks had been sent before."""
        homes = HomeEndpoints(Random(0), by_header=False)
        for blocks in repeated:
            homes.sent(self.LONG, blocks)
        return homes.repeated_share(others)

    def test_is_all_until_prompts_show_otherwise(self) -> None:
        assert self.after([]) == 1
        assert 0.9 < self.after([0]) < 1

    def test_vanishes_with_new_prompts(self) -> None:
        assert self.after([0] * 100) < 0.2
        assert self.after([0] * 400) < 0.001

    def test_returns_with_repeated_prompts(self) -> None:
        assert self.after([0] * 400 + [self.BLOCKS] * 200) > 0.95

    def test_is_the_mean_of_the_recent_prompts(self) -> None:
        assert self.after([self.BLOCKS // 4] * 400) == pytest.approx(0.25, rel=0.01)
        assert self.after([0, self.BLOCKS] * 200) == pytest.approx(0.5, rel=0.05)

    def test_includes_what_others_have_probably_sent(self) -> None:
        quarter = [self.BLOCKS // 4] * 400
        assert self.after(quarter, others=0.5) == pytest.approx(0.5, rel=0.01)
        assert self.after(quarter, others=0.75) == pytest.approx(1, rel=0.01)
        assert self.after(quarter, others=0.9) == 1

    def test_is_none_of_new_prompts_behind_any_number_of_sidecars(self) -> None:
        assert self.after([0] * 800, others=1.0) < 0.001

    def test_is_at_most_the_whole_prompt(self) -> None:
        assert self.after([2 * self.BLOCKS] * 10 + [0] * 100) == self.after([0] * 100)

    def test_includes_all_prompts_of_a_request(self) -> None:
        documents = [prompt(f"document {number}").blocks for number in range(3)]
        several = self.LONG._replace(other_chains=tuple(documents))
        homes = HomeEndpoints(Random(0), by_header=False)
        for _ in range(400):
            homes.sent(several, self.BLOCKS)
        known = self.BLOCKS / several.block_count
        assert homes.repeated_share(0.0) == pytest.approx(known, rel=0.01)

    def test_does_not_depend_on_prompts_shorter_than_a_block(self) -> None:
        homes = HomeEndpoints(Random(0), by_header=False)
        for _ in range(400):
            homes.sent(Prompt((), 100), 0)
        assert homes.repeated_share(0.0) == 1
