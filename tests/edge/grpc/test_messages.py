"""gRPC's messages in the bytes of a stream."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.edge.grpc.messages import MOST_BYTES, CallError, Messages, Status, framed


def fed(*pieces: bytes) -> list[bytes]:
    """Return all messages in these pieces."""
    messages = Messages()
    return [message for piece in pieces for message in messages.feed(piece)]


def test_framed_message_begins_with_its_length() -> None:
    assert framed(b"abc") == b"\0\0\0\0\3abc"


@given(st.lists(st.binary(max_size=300)), st.data())
def test_messages_are_found_in_any_pieces(messages: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(map(framed, messages))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=20)))
    places = [0, *cuts, len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(places)]
    assert fed(*pieces) == messages


def test_message_is_returned_as_soon_as_it_is_complete() -> None:
    messages = Messages()
    assert not messages.feed(framed(b"abc")[:-1])
    assert messages.feed(b"c" + framed(b"de")[:3]) == [b"abc"]
    assert messages.feed(framed(b"de")[3:]) == [b"de"]


def test_long_message_is_joined_only_once() -> None:
    messages = Messages()
    whole = framed(bytes(1 << 20))
    for start in range(0, len(whole) - 1, 100):
        # Were all pieces joined each time, this would be 5 GB of copies.
        assert not messages.feed(whole[start : min(start + 100, len(whole) - 1)])
    assert list(messages.feed(whole[-1:])) == [bytes(1 << 20)]


@pytest.mark.parametrize(
    ("prefix", "status"),
    [
        (b"\1\0\0\0\1", Status.UNIMPLEMENTED),
        (b"\xff\0\0\0\1", Status.UNIMPLEMENTED),
        (b"\0" + (MOST_BYTES + 1).to_bytes(4, "big"), Status.RESOURCE_EXHAUSTED),
    ],
    ids=["compressed", "a flag to come", "too long"],
)
def test_unsupported_prefix_raises_call_error(prefix: bytes, status: Status) -> None:
    with pytest.raises(CallError) as error:
        fed(framed(b"abc") + prefix)
    assert error.value.status is status


@given(st.lists(st.binary(max_size=50)))
def test_any_bytes_yield_messages_or_call_error(pieces: list[bytes]) -> None:
    try:
        found = fed(*pieces)
    except CallError:
        return
    assert b"".join(pieces).startswith(b"".join(map(framed, found)))
