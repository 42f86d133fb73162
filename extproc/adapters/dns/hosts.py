"""The hosts file of the machine or the container."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from extproc.adapters.endpoints.screening import parse_ip

_LOCALHOST = {"localhost": ["127.0.0.1"]}
"""Minimal images have no hosts file, and this name belongs to no DNS server (RFC 6761)."""


class HostsFile:
    """Addresses by name; the file is read again when it changes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read: tuple[int, int] | None = None
        self._addresses: dict[str, list[str]] = dict(_LOCALHOST)

    def addresses(self, host: str) -> tuple[str, ...]:
        """Return the addresses of a lower-case name; none if the file does not list it.

        IPv4 addresses hide IPv6 ones, as in DNS: one server has both.
        """
        self._refresh()
        found = self._addresses.get(host.removesuffix("."), ())
        return tuple(one for one in found if ":" not in one) or tuple(found)

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            if (signature := (stat.st_mtime_ns, stat.st_size)) != self._read:
                lines = self._path.read_text(errors="replace").splitlines()
                self._addresses, self._read = _LOCALHOST | _parsed(lines), signature
        except OSError:
            # The last readable lines stay in force, as the last DNS response does.
            self._read = None


def _parsed(lines: Iterable[str]) -> dict[str, list[str]]:
    addresses: dict[str, list[str]] = {}
    for line in lines:
        address, *names = line.partition("#")[0].split() or [""]
        if parse_ip(address) is not None:
            for name in {one.lower().removesuffix(".") for one in names}:
                addresses.setdefault(name, []).append(address)
    return addresses
