"""Attacks on the port that Envoy connects to; each runs in its own process.

`python -m tests.faults.http2_attacks NAME PORT` attacks until it is killed. The docstring of an
attack is a noun phrase, because the report of the fault tests quotes it.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count

from hpack import Encoder

from extproc.edge.grpc.messages import MOST_BYTES, framed
from extproc.edge.http2 import LIMITS
from tests.edge.envoy import chat_request, request_body, request_headers
from tests.edge.http2 import wire

INDEXED = b"\x90"
UPDATE = b"\x20"
BEGIN = wire.PREFACE + wire.settings([(4, 1 << 30)]) + wire.window_update(0, 1 << 30)
GREETING = BEGIN + wire.SETTINGS_ACK
REQUEST = framed(request_headers()) + framed(request_body(chat_request("llama", "hello")))
FRAME = 16_384


def headers(stream: int, block: bytes, flags: int = wire.END_HEADERS) -> bytes:
    return wire.frame(wire.HEADERS, flags, stream, block)


def streams() -> Iterator[tuple[int, bytes]]:
    """Yield stream numbers, each with the beginning of its header block."""
    for stream in count(1, 2):
        yield stream, UPDATE if stream == 1 else b""


class Peer:
    """A connection that reads all frames and keeps track of the flow-control windows."""

    def __init__(self, port: int, greeting: bytes = GREETING) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.windows: defaultdict[int, int] = defaultdict(lambda: LIMITS.stream_window)
        self.windows[0] = 65_535
        threading.Thread(target=self._read, daemon=True).start()
        self.socket.sendall(greeting)

    def send(self, *frames: bytes) -> None:
        """Send frames. Raises OSError after the sidecar closed the connection."""
        self.socket.sendall(b"".join(frames))

    def wait_for_window(self, stream: int, size: int) -> None:
        while min(self.windows[0], self.windows[stream]) < size:
            if self.socket.fileno() < 0:
                raise OSError("closed")
            time.sleep(0.001)
        self.windows[0] -= size
        self.windows[stream] -= size

    def _read(self) -> None:
        data = b""
        with suppress(OSError):
            while more := self.socket.recv(1 << 20):
                data += more
                while len(data) >= 9 and len(data) >= (end := 9 + int.from_bytes(data[:3])):
                    if data[3] == wire.WINDOW_UPDATE:
                        self.windows[int.from_bytes(data[5:9])] += int.from_bytes(data[9:end])
                    data = data[end:]
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def valid_requests(port: int) -> None:
    """Requests as Envoy sends them, without a pause."""
    peer = Peer(port)
    block = wire.block()
    batch = b""
    for stream, begin in streams():
        batch += headers(stream, begin + block) + wire.data(stream, REQUEST, end=True)
        if len(batch) > 1 << 18:
            peer.send(batch)
            batch = b""


def size_updates(port: int) -> None:
    """Size updates of the header table, 15,000 in a block."""
    peer = Peer(port, BEGIN)
    for stream, _ in streams():
        peer.send(headers(stream, UPDATE * 15_000 + wire.block(), wire.END_HEADERS | 1))


def indexed_fields(port: int) -> None:
    """Header blocks with the most one-byte fields allowed, each block different."""
    peer = Peer(port, BEGIN)
    for stream, _ in streams():
        block = wire.block([*wire.REQUEST, (b"x", b"%d" % stream)]) + INDEXED * 90
        peer.send(headers(stream, block, wire.END_HEADERS | 1))


def few_fields(port: int) -> None:
    """Header blocks with the most fields that have no cost, each block different."""
    peer = Peer(port, BEGIN)
    for stream, _ in streams():
        block = wire.block([*wire.REQUEST, (b"x", b"%d" % stream)]) + INDEXED * 8
        peer.send(headers(stream, block, wire.END_HEADERS | 1))


def long_references(port: int) -> None:
    """References to a field of 4 kB, fifteen in a block."""
    peer, encoder = Peer(port, BEGIN), Encoder()
    long = (b"x", b"y" * 3_900)
    peer.send(headers(1, encoder.encode([*wire.REQUEST, long]), wire.END_HEADERS | 1))
    for stream, _ in streams():
        peer.send(headers(stream + 2, encoder.encode([*wire.REQUEST, *[long] * 15])))


def unfinished_messages(port: int) -> None:
    """Messages whose last byte never arrives, on as many streams as the sidecar accepts."""
    peer = Peer(port)
    for stream, begin in streams():
        peer.send(headers(stream, begin + wire.block()))
        left = MOST_BYTES - 1
        prefix = b"\0" + MOST_BYTES.to_bytes(4)
        patience = time.monotonic() + 0.05
        while left and (time.monotonic() < patience or stream < 20):
            if min(peer.windows[0], peer.windows[stream]) < FRAME:
                if stream >= 3:
                    break
                time.sleep(0.001)
                continue
            peer.wait_for_window(stream, FRAME)
            peer.send(wire.data(stream, (prefix + bytes(FRAME))[:FRAME]))
            prefix = b""
            left -= min(left, FRAME)
        if stream > 4_000:
            time.sleep(1_000)


def tiny_frames(port: int) -> None:
    """Messages of the largest size, in DATA frames of two bytes."""
    peer = Peer(port)
    tiny = 1_000
    for stream, begin in streams():
        peer.send(headers(stream, begin + wire.block()))
        peer.wait_for_window(stream, 5)
        peer.send(wire.data(stream, b"\0" + MOST_BYTES.to_bytes(4)))
        frames = wire.data(stream, b"xx") * tiny
        for _ in range(MOST_BYTES // (2 * tiny)):
            peer.wait_for_window(stream, 2 * tiny)
            peer.send(frames)


def largest_messages(port: int) -> None:
    """Messages of the largest size, one after the other."""
    peer = Peer(port)
    for stream, begin in streams():
        peer.send(headers(stream, begin + wire.block()))
        body = framed(request_body(b'{"model": "llama", "messages": ["' + b"x" * (MOST_BYTES - 99)))
        whole = framed(request_headers()) + body
        for start in range(0, len(whole), FRAME):
            peer.wait_for_window(stream, FRAME)
            peer.send(wire.data(stream, whole[start : start + FRAME]))
        peer.send(wire.data(stream, b"", end=True))


def continuations(port: int) -> None:
    """Header blocks of the largest size, in CONTINUATION frames of 16 KiB."""
    peer = Peer(port)
    for stream, begin in streams():
        block = begin + wire.block([*wire.REQUEST, (b"x-%d" % stream, b"\xff" * 39_000)])
        pieces = [block[at : at + FRAME] for at in range(0, len(block), FRAME)]
        peer.send(headers(stream, pieces[0], 1))
        for piece in pieces[1:]:
            flags = wire.END_HEADERS if piece is pieces[-1] else 0
            peer.send(wire.frame(wire.CONTINUATION, flags, stream, piece))


def bad_trailers(port: int) -> None:
    """Requests that end with malformed trailers."""
    peer = Peer(port)
    for stream, begin in streams():
        bad = wire.block([(b":path", b"%d" % stream)])
        peer.send(headers(stream, begin + wire.block()), headers(stream, bad))


def new_connections(port: int) -> None:
    """Connections that begin a request and close."""
    while True:
        with socket.create_connection(("127.0.0.1", port)) as one:
            one.sendall(GREETING + headers(1, UPDATE + wire.block()))


def idle_prefaces(port: int) -> None:
    """Connections that send a single byte, as many as the sidecar accepts."""
    held: list[socket.socket] = []
    while True:
        held = [one for one in held if one.fileno() >= 0][-800:]
        held.append(socket.create_connection(("127.0.0.1", port)))
        held[-1].sendall(wire.PREFACE[:1])
        time.sleep(0.001)


ATTACKS: dict[str, Callable[[int], None]] = {
    attack.__name__: attack
    for attack in (
        valid_requests,
        size_updates,
        indexed_fields,
        few_fields,
        long_references,
        unfinished_messages,
        tiny_frames,
        largest_messages,
        continuations,
        bad_trailers,
        new_connections,
        idle_prefaces,
    )
}


def main() -> None:
    attack, port = ATTACKS[sys.argv[1]], int(sys.argv[2])
    print("ready", flush=True)
    while True:
        with suppress(OSError):
            attack(port)
        time.sleep(0.001)


if __name__ == "__main__":
    main()
