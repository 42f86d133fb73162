from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.adapters.dns.hosts import HostsFile
from tests.core.builders import brief


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "hosts"


def test_name_has_addresses_of_all_its_lines(path: Path) -> None:
    path.write_text("10.0.0.1 vllm-a gpu  # first\n10.0.0.2\tgpu\n# 10.0.0.3 gpu\n\nno-ip gpu\n")
    hosts = HostsFile(path)
    assert hosts.addresses("gpu") == ("10.0.0.1", "10.0.0.2")
    assert hosts.addresses("vllm-a") == ("10.0.0.1",)
    assert hosts.addresses("first") == ()


def test_names_match_in_any_case_and_with_a_trailing_dot(path: Path) -> None:
    path.write_text("10.0.0.1 GPU.Example.\n")
    assert HostsFile(path).addresses("gpu.example") == ("10.0.0.1",)
    assert HostsFile(path).addresses("gpu.example.") == ("10.0.0.1",)


def test_ipv4_hides_ipv6(path: Path) -> None:
    path.write_text("fd00::1 both six\n10.0.0.1 both\n")
    assert HostsFile(path).addresses("both") == ("10.0.0.1",)
    assert HostsFile(path).addresses("six") == ("fd00::1",)


def test_localhost_needs_no_hosts_file(path: Path) -> None:
    assert HostsFile(path).addresses("localhost") == ("127.0.0.1",)
    path.write_text("127.0.0.5 localhost\n")
    assert HostsFile(path).addresses("localhost") == ("127.0.0.5",)


def test_changed_file_is_read_again_and_missing_file_changes_nothing(path: Path) -> None:
    path.write_text("10.0.0.1 a\n")
    hosts = HostsFile(path)
    assert hosts.addresses("a") == ("10.0.0.1",)
    path.unlink()
    assert hosts.addresses("a") == ("10.0.0.1",)
    path.write_text("10.0.0.2 a\n")
    os.utime(path, ns=(1, 1))
    assert hosts.addresses("a") == ("10.0.0.2",)


@brief
@given(st.binary(max_size=200))
def test_any_content_is_read_without_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("hosts") / "hosts"
    path.write_bytes(content)
    HostsFile(path).addresses("a")
