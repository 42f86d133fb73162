"""Line numbers in errors and notes, and the byte order mark."""

from __future__ import annotations

import pytest

from extproc.envoy.merge import ConfigurationError, merge
from tests.envoy.texts import CATCH_ALL, ENDPOINTS, configuration, listener, merged


def test_lines_are_those_of_the_file() -> None:
    guard = (
        "- name: guard\n  typed_config:\n"
        '    "@type": type.googleapis.com/envoy.extensions.filters.http.ext_proc.v3.'
        "ExternalProcessor\n"
    )
    text = configuration([listener(filters=guard + CATCH_ALL)])
    line = 1 + text[: text.index("- name: guard")].count("\n")
    with pytest.raises(ConfigurationError, match=rf"'guard' \(line {line}\)"):
        merged(text)


def test_notes_have_the_lines_of_the_file() -> None:
    text = configuration(
        [listener("- match: {prefix: /v1/models}\n  route: {cluster: app}\n" + CATCH_ALL)]
    )
    line = 1 + text[: text.index("- match: {prefix: /v1/models}")].count("\n")
    notes = merge(text, endpoints=ENDPOINTS).notes
    assert f"the route in line {line}: its LLM requests now go to the new routes" in notes[0]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_byte_order_mark_stays(end: str) -> None:
    text = "\ufeff" + configuration().removeprefix("# mine\n").replace("\n", end)
    after = merged(text)
    assert after == "\ufeff" + merged(text[1:])
    assert merged(after) == after
