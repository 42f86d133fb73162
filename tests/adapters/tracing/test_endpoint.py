from __future__ import annotations

import pytest

from extproc.adapters.tracing.endpoint import OtlpEndpoint, otlp_endpoint


@pytest.mark.parametrize(
    ("url", "protocol", "exported"),
    [
        ("http://collector:4317", "grpc", "http://collector:4317"),
        ("https://collector:4317/", "grpc", "https://collector:4317"),
        ("grpc://collector", "grpc", "http://collector:4317"),
        ("grpc://collector:5000", "grpc", "http://collector:5000"),
        ("grpcs://[::1]:443", "grpc", "https://[::1]:443"),
        ("http://collector", "http", "http://collector:4318/v1/traces"),
        ("http://collector:4318/", "http", "http://collector:4318/v1/traces"),
        ("https://traces.example.com", "http", "https://traces.example.com/v1/traces"),
        (
            "https://traces.example.com/otlp/v1/traces",
            "http",
            "https://traces.example.com/otlp/v1/traces",
        ),
        ("http://collector:4317/custom", "http", "http://collector:4317/custom"),
    ],
)
def test_scheme_and_port_choose_the_protocol(url: str, protocol: str, exported: str) -> None:
    found = otlp_endpoint(url)
    assert (found.protocol, found.url) == (protocol, exported)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "collector:4317",
        "ftp://collector",
        "http://",
        "http://a:0",
        "http://a:99999",
        "grpc://a/path",
        "http://a?b",
    ],
)
def test_other_texts_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r".*"):
        otlp_endpoint(url)


def test_installed_packages_are_found() -> None:
    assert OtlpEndpoint("grpc", "").is_installed()
    assert OtlpEndpoint("http", "").is_installed()
