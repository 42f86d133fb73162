from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import Mock

import pytest

from extproc.adapters.configuration import file as models_file
from extproc.adapters.configuration.document import DocumentError
from extproc.adapters.configuration.file import ModelsFile
from tests.adapters.documents import BROKEN, LLAMA, QWEN, Served, eventually
from tests.extent import PATIENCE

BOTH = LLAMA + QWEN.removeprefix(b"models:\n")


@pytest.fixture(autouse=True)
def _look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models_file, "POLL_SECONDS", 0.005)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "models.yaml"
    path.write_bytes(LLAMA)
    return path


@pytest.fixture
async def served(path: Path) -> AsyncIterator[Served]:
    """A configuration that watches the file."""
    served = Served()
    file = ModelsFile(path, served.configuration)
    await file.load()
    following = asyncio.create_task(file.watch())
    yield served
    assert not following.done(), following.exception()
    following.cancel()
    with suppress(asyncio.CancelledError):
        await following


def replace(path: Path, content: bytes) -> None:
    """Replace the file by a new one, as editors and deployment tools do."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


async def test_first_load_takes_effect(served: Served) -> None:
    assert served.models == ["llama"]


async def test_invalid_first_document_raises(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    with pytest.raises(FileNotFoundError):
        await ModelsFile(path, Served().configuration).load()
    path.write_bytes(BROKEN)
    with pytest.raises(DocumentError):
        await ModelsFile(path, Served().configuration).load()


async def test_replaced_file_takes_effect(path: Path, served: Served) -> None:
    replace(path, QWEN)
    await eventually(lambda: served.models == ["qwen"])
    assert served.sample("extproc_config_last_reload_successful") == 1


async def test_edit_in_place_takes_effect(path: Path, served: Served) -> None:
    path.write_bytes(BOTH)
    await eventually(lambda: served.models == ["llama", "qwen"])


async def test_edit_with_same_size_takes_effect(path: Path, served: Served) -> None:
    path.write_bytes(LLAMA.replace(b"llama", b"other"))
    await eventually(lambda: served.models == ["other"])


async def test_other_file_with_same_size_and_time_takes_effect(path: Path, served: Served) -> None:
    before = path.stat()
    new = path.with_suffix(".new")
    new.write_bytes(LLAMA.replace(b"llama", b"other"))
    os.utime(new, ns=(before.st_atime_ns, before.st_mtime_ns))
    new.replace(path)
    await eventually(lambda: served.models == ["other"])


async def test_unchanged_file_is_not_read_again(path: Path, served: Served) -> None:
    replace(path, QWEN)
    await eventually(lambda: served.models == ["qwen"])
    for _ in range(20):
        await asyncio.sleep(0.005)
    assert served.sample("extproc_config_reloads_total", result="success") == 2


class TestConfigMapVolume:
    """`models.yaml` -> `..data/models.yaml`, and `..data` -> a directory that is swapped."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        self.mount = tmp_path
        self.publish("..2025_1", LLAMA)
        path = tmp_path / "models.yaml"
        path.symlink_to("..data/models.yaml")
        return path

    def publish(self, version: str, content: bytes) -> None:
        directory = self.mount / version
        directory.mkdir()
        (directory / "models.yaml").write_bytes(content)
        (self.mount / "..data_tmp").symlink_to(version)
        (self.mount / "..data_tmp").replace(self.mount / "..data")

    async def test_swapped_symlink_takes_effect(self, served: Served) -> None:
        assert served.models == ["llama"]
        self.publish("..2025_2", QWEN)
        await eventually(lambda: served.models == ["qwen"])
        self.publish("..2025_3", BROKEN)
        await eventually(lambda: served.refusals() == 1)
        assert served.models == ["qwen"]
        self.publish("..2025_4", LLAMA)
        await eventually(lambda: served.models == ["llama"])


class TestLastValidDocumentStaysInForce:
    async def test_while_document_is_invalid(self, path: Path, served: Served) -> None:
        replace(path, BROKEN)
        await eventually(lambda: served.refusals() == 1)
        assert served.models == ["llama"]
        assert served.sample("extproc_config_last_reload_successful") == 0

        replace(path, QWEN)
        await eventually(lambda: served.models == ["qwen"])
        assert served.sample("extproc_config_last_reload_successful") == 1

    async def test_while_file_is_missing(self, path: Path, served: Served) -> None:
        path.unlink()
        await eventually(lambda: served.refusals() == 1)
        assert served.models == ["llama"]

        path.write_bytes(QWEN)
        await eventually(lambda: served.models == ["qwen"])

    async def test_while_path_is_a_directory(self, path: Path, served: Served) -> None:
        path.unlink()
        path.mkdir()
        await eventually(lambda: served.refusals() >= 1)
        assert served.models == ["llama"]

        path.rmdir()
        path.write_bytes(QWEN)
        await eventually(lambda: served.models == ["qwen"])

    async def test_only_while_file_is_unreadable(
        self, path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A change during exhausted file descriptors is applied later, without another change."""
        with monkeypatch.context() as patched:
            no_file = OSError(errno.EMFILE, "Too many open files")
            patched.setattr(ModelsFile, "_parse", Mock(side_effect=no_file))
            replace(path, QWEN)
            await eventually(lambda: served.refusals() == 1)
            for _ in range(20):
                await asyncio.sleep(0.005)
            assert served.refusals() == 1
            assert served.models == ["llama"]
        await eventually(lambda: served.models == ["qwen"])
        assert served.sample("extproc_config_last_reload_successful") == 1

    async def test_while_document_is_too_large(self, path: Path, served: Served) -> None:
        replace(path, QWEN + b"#" * 1024 * 1024)
        await eventually(lambda: served.refusals() == 1)
        assert served.models == ["llama"]

    @pytest.mark.parametrize(
        "content", [b"", b"\x00", b"[" * 3000, b"models: !!bool maybe", b"{? [a] : b}"]
    )
    async def test_with_any_contents(self, path: Path, served: Served, content: bytes) -> None:
        replace(path, content)
        await eventually(lambda: served.refusals() == 1)
        assert served.models == ["llama"]

        replace(path, QWEN)
        await eventually(lambda: served.models == ["qwen"])

    async def test_and_invalid_document_is_reported_once(self, path: Path, served: Served) -> None:
        replace(path, BROKEN)
        await eventually(lambda: served.refusals() == 1)
        for _ in range(20):
            await asyncio.sleep(0.005)
        assert served.refusals() == 1


async def test_file_that_keeps_changing_is_read(path: Path, served: Served) -> None:
    async def write_without_rest() -> None:
        turn = 0
        while True:
            turn += 1
            replace(path, QWEN + b"#" * turn)
            await asyncio.sleep(0)

    writing = asyncio.create_task(write_without_rest())
    await eventually(lambda: served.models == ["qwen"])
    writing.cancel()


async def test_half_written_file_is_not_read(
    path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    polls = 0
    sleep = asyncio.sleep

    async def sleep_and_write(delay: float) -> None:
        """Sleep, and append a piece of the file before the first and the second sleep."""
        nonlocal polls
        polls += 1
        if polls in (1, 2):
            with path.open("ab") as file:
                file.write(b"- name: qwen" if polls == 1 else b"\n  endpoints: [10.0.0.3:8000]\n")
                os.fsync(file.fileno())
        await sleep(delay)

    monkeypatch.setattr(asyncio, "sleep", sleep_and_write)
    async with asyncio.timeout(PATIENCE):
        while served.models != ["llama", "qwen"]:
            await sleep(0.005)
    assert served.refusals() == 0
