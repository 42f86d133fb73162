"""Batches and checkpoints as bytes."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.shared_state.codec import (
    MOST_BYTES,
    UnreadableError,
    decode_batch,
    decode_checkpoint,
    encode_batch,
    encode_checkpoint,
)
from extproc.core.sharing.batch import Batch
from extproc.core.sharing.checkpoint import Checkpoint

numbers = st.integers(0, 2**64 - 1)
tokens = st.floats(-1, 1e7)
seconds = st.floats(0, 1e6)
blocks = st.integers(0, 2**64 - 1)
sents = st.tuples(
    *(numbers, numbers, numbers, numbers, tokens, tokens),
    st.none() | blocks,
    seconds,
    st.lists(st.binary(max_size=32), max_size=3),
    st.none() | blocks,
)
helds = st.tuples(numbers, numbers, numbers, tokens, tokens, seconds)
batches = st.builds(
    Batch,
    origin=st.text(min_size=1, max_size=64),
    names=st.lists(st.text(), min_size=1),
    sent=st.lists(sents, max_size=3),
    moved=st.lists(st.tuples(numbers, numbers)),
    began=st.lists(numbers),
    ended=st.lists(numbers),
    held=st.none() | st.lists(helds, max_size=3),
    ejected=st.lists(st.tuples(numbers, seconds)),
    tried=st.lists(numbers),
    returned=st.lists(numbers),
    token_sizes=st.dictionaries(st.text(), tokens, max_size=3),
    is_last=st.booleans(),
)
checkpoints = st.builds(
    Checkpoint, st.floats(0, 1e15), st.lists(st.tuples(seconds, st.binary(max_size=32)))
)

SENT = (1, 1, 2, 0, 50.0, 30.0, 7, 0.01, [b"12345678"], 8)
HELD = (1, 1, 2, 50.0, 30.0, 0.5)
BATCH = Batch("b", ["", "llama", "10.0.0.1:8000"], sent=[SENT], held=[HELD])
NAN, INFINITY = float("nan"), float("inf")


def changed(**values: Any) -> bytes:
    """Return a batch with other values, which no check has seen."""
    return encode_batch(BATCH._replace(**values))


def with_place(row: tuple[Any, ...], place: int, value: object) -> list[tuple[Any, ...]]:
    return [(*row[:place], value, *row[place + 1 :])]


@given(batches)
def test_a_batch_is_decoded_as_it_was(batch: Batch) -> None:
    assert decode_batch(encode_batch(batch)) == batch


@given(checkpoints)
def test_a_checkpoint_is_decoded_as_it_was(checkpoint: Checkpoint) -> None:
    assert decode_checkpoint(encode_checkpoint(checkpoint)) == checkpoint


def test_a_request_with_a_prompt_of_64_blocks_takes_less_than_700_bytes() -> None:
    sent = (10_000, 1, 2, 0, 4096.0, 1024.0, 2**64 - 1, 0.01, [b"x" * 512], 2**64 - 2)
    assert len(encode_batch(Batch("0123456789abcdef", BATCH.names, sent=[sent]))) < 700


class TestUnreadableError:
    @given(st.binary(max_size=200))
    def test_is_raised_for_any_garbage(self, garbage: bytes) -> None:
        for decode in (decode_batch, decode_checkpoint):
            try:
                decode(garbage)
            except UnreadableError:
                continue
            pytest.fail("garbage was read")

    @given(batches, st.data())
    def test_is_the_only_error_of_a_changed_batch(self, batch: Batch, data: st.DataObject) -> None:
        message = bytearray(encode_batch(batch))
        start = data.draw(st.integers(0, len(message)))
        end = data.draw(st.integers(start, min(start + 4, len(message))))
        message[start:end] = data.draw(st.binary(max_size=4))
        with suppress(UnreadableError):
            decode_batch(bytes(message))

    @given(checkpoints, st.integers(0, 100), st.binary(max_size=4))
    def test_is_the_only_error_of_a_changed_checkpoint(
        self, checkpoint: Checkpoint, start: int, garbage: bytes
    ) -> None:
        message = bytearray(encode_checkpoint(checkpoint))
        message[start : start + 2] = garbage
        with suppress(UnreadableError):
            decode_checkpoint(bytes(message))

    @pytest.mark.parametrize("version", [0, 2, -1, "1", True, 1.0, None])
    def test_is_raised_for_another_version(self, version: object) -> None:
        for message, decode in (
            ((version, *BATCH), decode_batch),
            ((version, 1.0, []), decode_checkpoint),
        ):
            with pytest.raises(UnreadableError):
                decode(msgspec.msgpack.encode(message))

    @pytest.mark.parametrize("place", [4, 5, 7])
    @pytest.mark.parametrize("value", [NAN, INFINITY, -INFINITY, -1.5, 1e10, "1", None])
    def test_is_raised_for_a_sent_request_with_an_impossible_amount(
        self, place: int, value: object
    ) -> None:
        with pytest.raises(UnreadableError):
            decode_batch(changed(sent=with_place(SENT, place, value)))

    @pytest.mark.parametrize("place", [0, 1, 2, 3])
    @pytest.mark.parametrize("value", [-1, 0.5, "1", None])
    def test_is_raised_for_a_sent_request_with_an_impossible_number(
        self, place: int, value: object
    ) -> None:
        with pytest.raises(UnreadableError):
            decode_batch(changed(sent=with_place(SENT, place, value)))

    @pytest.mark.parametrize("place", [3, 4, 5])
    @pytest.mark.parametrize("value", [NAN, INFINITY, -1.5, 1e10])
    def test_is_raised_for_a_held_request_with_an_impossible_amount(
        self, place: int, value: float
    ) -> None:
        with pytest.raises(UnreadableError):
            decode_batch(changed(held=with_place(HELD, place, value)))

    @pytest.mark.parametrize(
        "values",
        [
            {"origin": ""},
            {"origin": "x" * 65},
            {"origin": 5},
            {"names": [1]},
            {"sent": [SENT[:-1]]},
            {"sent": [(*SENT, 1)]},
            {"sent": with_place(SENT, 8, ["text"])},
            {"sent": with_place(SENT, 8, [[1, 2]])},
            {"sent": with_place(SENT, 6, 0.5)},
            {"sent": with_place(SENT, 9, "8")},
            {"held": 0},
            {"moved": [(1, -2)]},
            {"began": [-1]},
            {"ended": ["1"]},
            {"ejected": [(1, -5.0)]},
            {"ejected": [(1, NAN)]},
            {"tried": [1.5]},
            {"token_sizes": {"llama": NAN}},
            {"token_sizes": {1: 4.0}},
            {"is_last": 1},
        ],
    )
    def test_is_raised_for_a_batch_with_another_type_or_an_impossible_value(
        self, values: dict[str, Any]
    ) -> None:
        with pytest.raises(UnreadableError):
            decode_batch(changed(**values))

    @pytest.mark.parametrize(
        ("prompt_tokens", "runs"),
        [(NAN, []), (-1.0, []), ("1", []), (1.0, [(-1.0, b"")]), (1.0, [(NAN, b"")]), (1.0, None)],
    )
    def test_is_raised_for_a_checkpoint_with_an_impossible_value(
        self, prompt_tokens: object, runs: object
    ) -> None:
        with pytest.raises(UnreadableError):
            decode_checkpoint(msgspec.msgpack.encode((1, prompt_tokens, runs)))

    def test_is_raised_for_invalid_utf_8(self) -> None:
        message = encode_batch(BATCH)
        for text in (b"\xa1b", b"\xa5llama"):
            broken = message.replace(text, text[:-1] + b"\xff", 1)
            assert broken != message
            with pytest.raises(UnreadableError):
                decode_batch(broken)

    def test_is_raised_for_deep_nesting(self) -> None:
        fields = len(BATCH) + 1
        nested = b"\x91" * 100_000 + b"\xc0"
        message = bytes([0x90 + fields + 1]) + encode_batch(BATCH)[1:] + nested
        with pytest.raises(UnreadableError):
            decode_batch(message)

    @pytest.mark.parametrize("head", [b"\xdd", b"\xdf", b"\xc6", b"\xdb"])
    def test_is_raised_for_a_length_without_its_content(self, head: bytes) -> None:
        prefix = encode_batch(BATCH)[:3]
        with pytest.raises(UnreadableError):
            decode_batch(prefix + head + b"\xff\xff\xff\xff")

    def test_is_raised_for_a_message_that_is_too_long(self) -> None:
        assert decode_batch(changed(names=["x" * (MOST_BYTES - 200)]))
        with pytest.raises(UnreadableError):
            decode_batch(changed(names=["x" * MOST_BYTES]))
