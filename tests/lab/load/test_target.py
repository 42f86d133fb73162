"""Valid and invalid URLs and headers of a target."""

from __future__ import annotations

import socket

import pytest

from extproc.lab.load.target import Target, TargetError, parse, reachable_addresses
from extproc.lab.stack.processes import free_port


@pytest.mark.parametrize(
    ("url", "tls", "host", "port", "path", "shown"),
    [
        ("http://10.0.0.1:8000", False, "10.0.0.1", 8000, "", "http://10.0.0.1:8000"),
        ("http://host/", False, "host", 80, "", "http://host"),
        ("https://host/v1", True, "host", 443, "", "https://host"),
        ("https://host:8443/v1/", True, "host", 8443, "", "https://host:8443"),
        ("http://host/openai/v1", False, "host", 80, "/openai", "http://host/openai"),
        ("http://[::1]:8000", False, "::1", 8000, "", "http://[::1]:8000"),
    ],
)
def test_parses_urls(url: str, tls: bool, host: str, port: int, path: str, shown: str) -> None:
    target = parse(url, {})
    assert (target.tls, target.host, target.port, target.path) == (tls, host, port, path)
    assert target.url == shown


@pytest.mark.parametrize(
    "url",
    [
        *("", "host:80", "ftp://host", "http://", "http://host:0x50", "http://host:99999"),
        *("http://user:secret@host", "http://host/?a=b", "http://host/#a", "http://host/a b"),
        *("http://höst/ü", "http://host/\r\nx: y"),
    ],
)
def test_refuses_an_invalid_url_in_one_line(url: str) -> None:
    with pytest.raises(TargetError) as raised:
        parse(url, {})
    assert "\n" not in str(raised.value)
    assert "secret" not in str(raised.value)


def test_given_headers_replace_default_ones() -> None:
    head = parse("http://host", {"Host": "other", "X-A": "b"}).head("completions").decode()
    assert "host: other\r\n" in head
    assert "x-a: b\r\n" in head
    assert head.count("host: ") == 1
    assert head.startswith("POST /v1/completions HTTP/1.1\r\n")
    assert head.endswith("\r\ncontent-length: ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("a b", "x"), ("a\n", "x"), ("ü", "x"), ("", "x")],
        *[("a", "secret\r\nb: c"), ("a", "secret ü")],
        *[("Content-Length", "5"), ("transfer-encoding", "chunked"), ("connection", "close")],
    ],
)
def test_refuses_headers_that_break_requests(name: str, value: str) -> None:
    with pytest.raises(TargetError) as raised:
        parse("http://host", {name: value})
    assert "secret" not in str(raised.value)


def test_secrets_are_not_printed() -> None:
    target = parse("http://host", {"Authorization": "Bearer sk-very-secret", "x-tenant": "a"})
    assert target.secrets == ["Bearer sk-very-secret", "sk-very-secret"]
    assert "sk-very-secret" not in repr(target)


def test_returns_an_address_that_accepts_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        target = Target(False, "localhost", listening.getsockname()[1])
        assert reachable_addresses(target, 5, None) == ("127.0.0.1",)


def test_refuses_an_unreachable_target(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError, match=r"cannot connect to http://127\.0\.0\.1:.*refused"):
        reachable_addresses(Target(False, "127.0.0.1", free_port()), 5, None)
    with pytest.raises(TargetError, match="cannot resolve aaaa"):
        reachable_addresses(Target(False, "a" * 70 + ".invalid", 80), 5, None)

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(TargetError, match="cannot resolve host: Name or service not known"):
        reachable_addresses(Target(False, "host", 80), 5, None)
