from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from threading import Thread

import pytest

from extproc.adapters.observability.log_writer import FLUSH_SECONDS, MAX_LINES, LogWriter
from tests.extent import PATIENCE, limit

PIPE_BYTES = 65_536
"""The capacity of a pipe on Linux."""


class Pipe:
    """A pipe. Its writing end stays open, because a thread may still write."""

    def __init__(self) -> None:
        self._reader, self.writer = os.pipe()

    def read(self, size: int) -> bytes:
        """Wait for this many bytes and return them."""
        found = b""
        while len(found) < size and (more := os.read(self._reader, size - len(found))):
            found += more
        return found

    def close(self) -> None:
        """Close the reading end; a blocked write then fails."""
        if self._reader >= 0:
            os.close(self._reader)
            self._reader = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    made = Pipe()
    yield made
    made.close()


@pytest.fixture
def writer(pipe: Pipe) -> Iterator[LogWriter]:
    made = LogWriter(pipe.writer)
    yield made
    made.close()


def write(writer: LogWriter, *lines: str) -> None:
    for line in lines:
        writer.handle(logging.makeLogRecord({"msg": line}))


def drops(writer: LogWriter, lines: int) -> bool:
    """Return True if so many lines are dropped in time."""
    until = time.monotonic() + PATIENCE
    while writer.dropped < lines and time.monotonic() < until:
        time.sleep(0.01)
    return writer.dropped >= lines


def test_lines_are_written_in_order(writer: LogWriter, pipe: Pipe) -> None:
    lines = [f"line {i}" for i in range(1_000)]
    logged = "".join(f"{line}\n" for line in lines).encode()
    write(writer, *lines)
    assert pipe.read(len(logged)) == logged
    assert writer.dropped == 0


def test_line_larger_than_pipe_is_written_completely(writer: LogWriter, pipe: Pipe) -> None:
    size = 1_000_000
    write(writer, "x" * size)
    assert pipe.read(size + 1) == b"x" * size + b"\n"


def test_unencodable_text_is_written_escaped(writer: LogWriter, pipe: Pipe) -> None:
    write(writer, "a\ud800b")
    assert pipe.read(9) == b"a\\ud800b\n"


class TestWithoutReader:
    FLOOD = 3 * MAX_LINES

    @pytest.fixture(autouse=True)
    def _flooded(self, writer: LogWriter) -> None:
        # In a thread, so that a blocked call fails the test instead of blocking it.
        lines = (f"{i:0999}" for i in range(self.FLOOD))
        logger = Thread(target=write, args=(writer, *lines), daemon=True)
        logger.start()
        logger.join(PATIENCE)
        assert not logger.is_alive(), "logging blocks"

    def test_lines_without_room_are_dropped_and_counted(
        self, writer: LogWriter, pipe: Pipe
    ) -> None:
        assert 0 < writer.dropped <= self.FLOOD - MAX_LINES
        kept = pipe.read((self.FLOOD - writer.dropped) * 1_000).splitlines()
        assert kept == sorted(set(kept))
        assert len(kept) == self.FLOOD - writer.dropped

    def test_lines_are_written_again_when_reader_returns(
        self, writer: LogWriter, pipe: Pipe
    ) -> None:
        dropped = writer.dropped
        pipe.read((self.FLOOD - dropped) * 1_000)
        write(writer, "here again")
        assert pipe.read(11) == b"here again\n"
        assert writer.dropped == dropped

    @pytest.mark.timed
    def test_flush_waits_for_a_limited_time(self, writer: LogWriter) -> None:
        began = time.monotonic()
        writer.flush()
        assert time.monotonic() - began < limit(FLUSH_SECONDS + 1)

    def test_all_lines_are_counted_after_reader_closed(self, writer: LogWriter, pipe: Pipe) -> None:
        pipe.close()
        # Lines that fitted into the pipe before count as written.
        assert drops(writer, self.FLOOD - PIPE_BYTES // 1_000)
        assert writer.dropped <= self.FLOOD


def test_lines_without_space_on_device_are_counted() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    writer = LogWriter(full)
    write(writer, "a", "b", "c")
    writer.flush()
    assert writer.dropped == 3
    writer.close()
    os.close(full)


@pytest.mark.timed
def test_flush_waits_for_slow_reader(writer: LogWriter, pipe: Pipe) -> None:
    def read_late() -> None:
        time.sleep(0.2)
        pipe.read(500_000)

    write(writer, *(f"{i:0999}" for i in range(500)))
    reader = Thread(target=read_late)
    reader.start()
    began = time.monotonic()
    writer.flush()
    assert 0.1 < time.monotonic() - began < limit(FLUSH_SECONDS)
    reader.join()


def test_accepted_lines_are_written_after_close(pipe: Pipe) -> None:
    writer = LogWriter(pipe.writer)
    write(writer, "last words")
    writer.close()
    assert pipe.read(11) == b"last words\n"
