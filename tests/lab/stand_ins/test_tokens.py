"""The stand-in tokenizer, whose prefixes must match those of a router."""

from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from extproc.lab.stand_ins.tokens import (
    BLOCK_TOKENS,
    TOKEN_BYTES,
    answer,
    block_ids,
    chat_segments,
    count,
    from_ids,
    tokenize,
)

TEXT = st.text(max_size=200)
CONVERSATION = st.lists(st.tuples(st.sampled_from(["system", "user"]), TEXT), min_size=1)
BLOCK = TOKEN_BYTES * BLOCK_TOKENS


class TestTokens:
    def test_token_has_four_bytes(self) -> None:
        assert count(tokenize(["abcdefgh"])) == 2

    def test_end_of_a_segment_is_padded_to_a_token(self) -> None:
        assert count(tokenize(["abcde"])) == 2

    def test_token_does_not_cross_the_end_of_a_segment(self) -> None:
        assert count(tokenize(["ab", "cd"])) == 2
        assert tokenize(["ab", "cd"]) != tokenize(["abcd"])

    def test_an_empty_segment_has_no_tokens(self) -> None:
        assert count(tokenize([""])) == 0

    def test_length_counts_bytes_not_characters(self) -> None:
        assert count(tokenize(["日本語日"])) == 3

    def test_half_a_surrogate_pair_is_accepted(self) -> None:
        assert count(tokenize(["\ud800"])) == 1

    def test_different_token_ids_give_different_tokens(self) -> None:
        assert count(from_ids([1, 2, 3])) == 3
        assert from_ids([1, 2]) != from_ids([2, 1])


class TestBlocks:
    def test_only_full_blocks_have_an_id(self) -> None:
        assert len(block_ids(bytes(BLOCK - 4))) == 0
        assert len(block_ids(bytes(BLOCK))) == 1
        assert len(block_ids(bytes(2 * BLOCK - 4))) == 1

    def test_equal_blocks_after_different_ones_differ(self) -> None:
        same = b"s" * BLOCK
        assert block_ids(b"a" * BLOCK + same)[1] != block_ids(b"b" * BLOCK + same)[1]

    def test_equal_blocks_after_each_other_differ(self) -> None:
        assert len(set(block_ids(bytes(8 * BLOCK)))) == 8

    def test_parent_changes_all_ids(self) -> None:
        assert block_ids(bytes(BLOCK)) != block_ids(bytes(BLOCK), parent=7)

    @given(st.binary(max_size=5 * BLOCK), st.binary(max_size=5 * BLOCK))
    def test_later_text_does_not_change_earlier_blocks(self, head: bytes, tail: bytes) -> None:
        ids = block_ids(head)
        assert block_ids(head + tail)[: len(ids)] == ids

    @given(st.binary(min_size=3 * BLOCK, max_size=3 * BLOCK), st.integers(0, 3 * BLOCK - 1))
    def test_changed_byte_changes_its_block_and_all_later_ones(
        self, tokens: bytes, at: int
    ) -> None:
        changed = tokens[:at] + bytes([tokens[at] ^ 1]) + tokens[at + 1 :]
        first = at // BLOCK
        before, after = block_ids(tokens), block_ids(changed)
        assert before[:first] == after[:first]
        assert all(a != b for a, b in zip(before[first:], after[first:], strict=True))


class TestOutput:
    def test_has_the_requested_number_of_tokens(self) -> None:
        words = answer(b"abcd", 37)
        assert count(tokenize([b"".join(words).decode()])) == 37

    def test_is_equal_for_equal_prompts(self) -> None:
        assert answer(b"abcd", 20) == answer(b"abcd", 20)

    def test_differs_between_prompts(self) -> None:
        assert answer(b"abcd", 20) != answer(b"abce", 20)

    def test_shorter_output_is_a_prefix_of_a_longer_one(self) -> None:
        assert answer(b"abcd", 20)[:7] == answer(b"abcd", 7)

    def test_needs_no_escaping_in_json(self) -> None:
        text = b"".join(answer(b"abcd", 5_000)).decode()
        assert set(text) <= set("abcdefghijklmnopqrstuvwxyz, ")


class TestConversations:
    @given(CONVERSATION, st.integers(1, 100), TEXT)
    def test_next_turn_begins_with_prompt_and_output(
        self, messages: list[tuple[str, str]], length: int, question: str
    ) -> None:
        prompt = tokenize(chat_segments(messages))
        said = b"".join(answer(prompt, length))
        history = [*messages, ("assistant", said.decode()), ("user", question)]
        assert tokenize(chat_segments(history)).startswith(prompt + said)

    @given(CONVERSATION)
    def test_prompt_ends_with_the_role_of_the_output(self, messages: list[tuple[str, str]]) -> None:
        assert tokenize(chat_segments(messages)).endswith(tokenize(["<|assistant|>"]))

    def test_role_is_part_of_the_prompt(self) -> None:
        assert tokenize(chat_segments([("user", "x")])) != tokenize(
            chat_segments([("system", "x")])
        )


def test_ten_kilobytes_take_about_a_millisecond_of_cpu_time() -> None:
    def once() -> float:
        start = time.process_time()
        prompt = tokenize(chat_segments([("user", "word " * 2_000)]))
        block_ids(prompt + b"".join(answer(prompt, 100)))
        return time.process_time() - start

    # The limit leaves room for a slow machine: it only detects quadratic time.
    assert min(once() for _ in range(5)) < 0.005
