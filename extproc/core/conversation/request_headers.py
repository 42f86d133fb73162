"""Reading of request headers."""

from __future__ import annotations

from collections.abc import Mapping

from extproc.core.request.paths import Api


def header_text(headers: Mapping[str, bytes], name: str) -> str:
    """Return a header's value, with replacement characters for bytes that are not UTF-8."""
    return headers.get(name, b"").decode("utf-8", "replace")


def api_without_path(headers: Mapping[str, bytes]) -> Api:
    """Return the API by the content type, for gateways that send no path.

    Any JSON may have a prompt: the names of its fields, not the path, identify prefixes.
    """
    is_form = header_text(headers, "content-type").lower().startswith("multipart/")
    return Api.FORM if is_form else Api.GENERATE
