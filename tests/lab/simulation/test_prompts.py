"""Prompts made of names, compared with the product's reading of the text behind the names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise, product
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.core.request.blocks import BLOCK_BYTES, MAX_BLOCKS, Prompt, prompt_of
from extproc.core.request.json_document import parse_document
from extproc.lab.simulation.prompts import EVERYTHING, SHIPPED, Prompts, Shown
from extproc.lab.simulation.sidecars import MODEL
from extproc.lab.workloads.text import CHARACTERS_PER_TOKEN, document
from extproc.lab.workloads.workload import Api, Segment, Turn, conversation
from tests.extent import extent
from tests.lab.simulation.builders import turn

_BLOCK = BLOCK_BYTES // CHARACTERS_PER_TOKEN  # tokens

_ROLE = len("\nassistant\n")
"""Most bytes that the product reads of a message in addition to its text."""

_CHANCE = 3 * CHARACTERS_PER_TOKEN
"""Bytes by which two texts may agree at random after they part. Three words are one in millions."""


def read(api: Api, asked: Turn) -> Prompt:
    """Return the product's reading of the whole body."""
    return prompt_of(document(api, asked.prompt), asked.adapter or MODEL)


def shared(first: Prompt, second: Prompt) -> int:
    """Return the number of common blocks at the start."""
    pairs = zip(first.blocks, second.blocks, strict=False)
    fewer = min(len(first.blocks), len(second.blocks))
    return next((n for n, (a, b) in enumerate(pairs) if a != b), fewer)


def is_near(made: int, real: int, messages: int) -> bool:
    """True if the roles before `messages` messages of the real text explain the difference.

    Roles shift the real text by less than a block for 20 messages. So the end of a block that is
    just after a message's end in the real text is missing in the made one.
    """
    tolerance = messages * _ROLE + _CHANCE
    return made <= real <= made + 1 + tolerance // BLOCK_BYTES


# Few names, so that prompts meet in all possible ways, and lengths close to those of blocks. One
# name always has one role, as in all workloads.
lengths = st.sampled_from([1, 20, *range(_BLOCK - 2, _BLOCK + 3), 2 * _BLOCK, 100, 300])
segments = st.builds(Segment, st.sampled_from("ab"), lengths, st.just("user")) | st.builds(
    Segment, st.sampled_from("cd"), lengths, st.just("assistant")
)
openings = st.lists(
    st.builds(Segment, st.sampled_from(["rules", "law"]), lengths, st.just("system")), max_size=2
)
prompts = st.tuples(openings, st.lists(segments, min_size=1, max_size=5)).map(
    lambda parts: (*parts[0], *parts[1])
)
turns = st.builds(
    Turn, prompts, st.just(Segment("answer", 1, "assistant")), st.sampled_from(["", "", "lora"])
)


@settings(max_examples=extent(25, 200))
@given(st.lists(turns, min_size=2, max_size=5), st.sampled_from(get_args(Api)))
def test_prompts_agree_as_far_as_their_texts(asked: list[Turn], api: Api) -> None:
    names = Prompts()
    made, real = [names.of(one) for one in asked], [read(api, one) for one in asked]
    for one, other in product(range(len(asked)), repeat=2):
        messages = max(len(asked[one].prompt), len(asked[other].prompt))
        assert is_near(shared(made[one], made[other]), shared(real[one], real[other]), messages)


@settings(deadline=None)
@given(turns, st.sampled_from(get_args(Api)))
def test_prompts_are_as_long_as_their_texts(asked: Turn, api: Api) -> None:
    made, real = Prompts().of(asked), read(api, asked)
    assert 0 <= real.bytes - made.bytes <= _ROLE * len(asked.prompt)
    assert is_near(len(made.blocks), len(real.blocks), len(asked.prompt))


@settings(deadline=None)
@given(turns)
def test_the_system_prompt_has_the_blocks_of_its_text(asked: Turn) -> None:
    made, real = Prompts().of(asked), read("chat", asked)
    assert is_near(made.system_blocks, real.system_blocks, len(asked.prompt))
    assert made.system_blocks <= len(made.blocks)


@settings(deadline=None)
@given(turns)
def test_the_previous_turn_has_the_blocks_of_its_text(asked: Turn) -> None:
    made, real = Prompts().of(asked), read("chat", asked)
    assert is_near(made.previous_blocks, real.previous_blocks, len(asked.prompt))
    assert made.previous_blocks <= len(made.blocks)
    tolerance = len(asked.prompt) * _ROLE
    assert made.answered_bytes <= real.answered_bytes <= made.answered_bytes + tolerance


@settings(max_examples=extent(25, 200), deadline=None)
@given(st.lists(turns, min_size=2, max_size=5))
def test_turns_are_equal_if_their_texts_are(asked: list[Turn]) -> None:
    names = Prompts()
    made, real = [names.of(one) for one in asked], [read("chat", one) for one in asked]
    for one, other in product(range(len(asked)), repeat=2):
        assert (made[one].turn == made[other].turn) == (real[one].turn == real[other].turn)
        follows = made[one].previous_turn == made[other].turn
        assert follows == (real[one].previous_turn == real[other].turn)


def test_the_previous_turn_ends_before_the_last_response() -> None:
    question, answer = Segment("question", 5 * _BLOCK), Segment("old", 2 * _BLOCK, "assistant")
    for prompt, previous in (((question,), 0), ((question, answer, Segment("next", 9)), 5)):
        asked = Turn(prompt, Segment("answer", 1, "assistant"))
        assert Prompts().of(asked).previous_blocks == previous


def test_the_first_segment_is_the_system_prompt() -> None:
    rules, question = Segment("rules", 3 * _BLOCK, "system"), Segment("question", 10 * _BLOCK)
    for prompt, system in (((rules, question), 3), ((question, rules), 0), ((rules,), 3)):
        asked = Turn(prompt, Segment("answer", 1))
        assert Prompts().of(asked).system_blocks == system


def test_requests_with_one_long_system_prompt_share_its_home() -> None:
    names = Prompts()
    long, short = Segment("rules", 600, "system"), Segment("rules", 300, "system")
    asked = [names.of(turn(f"{n}", 100 * n, opening=[long])) for n in range(1, 6)]
    assert {one.system_hash for one in asked} == {asked[0].blocks[8]}
    assert names.of(turn("one", 100, opening=[short])).system_hash is None


def test_a_conversation_continues_its_blocks() -> None:
    names = Prompts()
    said = [names.of(one) for one in conversation("talk", (), [200] * 9, [100] * 9)]
    for before, now in pairwise(said):
        assert shared(before, now) == len(before.blocks)


def test_prompts_are_stable() -> None:
    names = Prompts()
    first = names.of(turn("one", 500))
    names.of(turn("another", 500))
    assert names.of(turn("one", 500)) == first


def test_an_adapter_shares_no_prompts() -> None:
    names = Prompts()
    one, other = (names.of(turn("question", 500, adapter=adapter)) for adapter in ("", "sql"))
    assert set(one.blocks).isdisjoint(other.blocks)


def test_blocks_are_spread_over_the_whole_ring() -> None:
    # They are ring positions, which give a system prompt its home endpoint.
    names = Prompts()
    blocks = [block for n in range(50) for block in names.of(turn(f"{n}", 1000)).blocks]
    assert len(set(blocks)) == len(blocks)
    quarters = [sum(block >> 62 == quarter for block in blocks) for quarter in range(4)]
    assert min(quarters) > 0.8 * len(blocks) / 4


class TestShownPart:
    @pytest.mark.parametrize(
        ("tokens", "blocks"),
        [
            pytest.param(10 * _BLOCK, 10, id="all of a short one"),
            pytest.param(20 * _BLOCK, 20, id="all of one that is as long as is shown whole"),
            pytest.param(20 * _BLOCK + 1, 5, id="the head of a longer one"),
            pytest.param(5000 * _BLOCK, 5, id="the head of one that is far longer"),
        ],
    )
    def test_is_the_whole_or_the_head(self, tokens: int, blocks: int) -> None:
        shown = Shown(whole=20 * BLOCK_BYTES, head=5 * BLOCK_BYTES)
        prompt = Prompts(shown).of(turn("question", tokens))
        assert len(prompt.blocks) == blocks
        assert prompt.bytes == CHARACTERS_PER_TOKEN * tokens

    def test_can_end_within_the_system_prompt(self) -> None:
        shown = Shown(whole=20 * BLOCK_BYTES, head=5 * BLOCK_BYTES)
        rules = Segment("rules", 30 * _BLOCK, "system")
        prompt = Prompts(shown).of(turn("question", 100, opening=[rules]))
        assert (len(prompt.blocks), prompt.system_blocks) == (5, 5)

    def test_is_a_prefix_of_the_whole(self) -> None:
        asked = turn("question", 100_000)
        names = [Prompts(shown).of(asked).blocks for shown in (Shown(131_072, 65_536), EVERYTHING)]
        assert [len(blocks) for blocks in names] == [65_536 // BLOCK_BYTES, 100_000 // _BLOCK]
        assert names[0] == names[1][: len(names[0])]

    def test_is_never_more_than_the_product_reads(self) -> None:
        asked = turn("question", (MAX_BLOCKS + 10) * _BLOCK)
        assert len(Prompts(EVERYTHING).of(asked).blocks) == MAX_BLOCKS

    def test_is_almost_as_much_as_that_of_a_real_body(self) -> None:
        # Some real bytes are not text: keys, quotes, the name of the model.
        messages: Sequence[int] = [2000] * 12
        asked = conversation("talk", (), messages, [500] * 12)[-1]
        body = json.dumps({"model": MODEL, **document("chat", asked.prompt)}).encode()
        head = body[: SHIPPED.head]
        assert len(body) < SHIPPED.whole
        few = Shown(whole=SHIPPED.head, head=SHIPPED.head)
        real = prompt_of(parse_document(head, complete=False), MODEL, share=len(head) / len(body))
        made = Prompts(few).of(asked)
        assert 0 <= len(made.blocks) - len(real.blocks) <= 4
        assert real.bytes == pytest.approx(made.bytes, rel=0.02)
