"""The reference of paths: the sidecar's use of each path's body."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.core.request.form_body import MAX_PARTS
from extproc.core.request.json_limits import (
    ALWAYS_PARSED_BYTES,
    MAX_PARSED_BYTES,
    MAX_PARSED_VALUES,
)
from extproc.core.request.paths import ANTHROPIC_VERSION, INFERENCE_PATHS, MODELS_PATH, Api
from extproc.lab.pages.docstrings import documented
from extproc.lab.pages.lines import codes, heading, paragraph, table


def paths() -> Iterator[str]:
    """Return the lines of the section."""
    yield from heading("Paths")
    yield from paragraph(
        f"The sidecar answers `GET {MODELS_PATH}` with the list of models, and "
        f"`GET {MODELS_PATH}/NAME` with one model. With the header `{ANTHROPIC_VERSION}` the "
        "response has Anthropic's shape. It includes `max_model_len` if the sidecar has read an "
        "endpoint's own list. The sidecar reads that list for models with `discoverAdapters` and "
        "for strategies that read metrics."
    )
    yield ""
    yield from paragraph(
        "The sidecar routes requests to these paths, below any prefix, with or without a trailing "
        "slash. `*` is the id of a stored response, video or voice:"
    )
    yield from _table()
    yield ""
    yield from paragraph(
        "A request without a model name is routed by the header `x-model`, else to the only "
        "configured model if there is no split. The sidecar refuses requests for all other paths. "
        "With `--unknown-paths pass` it leaves them to Envoy's other routes. `envoy/envoy.yaml` "
        "has no routes for WebSockets and for `/api/chat`, `/vertex_generate` and `/v1/decisions`, "
        "because Envoy limits the length of its patterns. If you need one of them, add a route."
    )
    yield ""
    yield from _bodies()


def _table() -> Iterator[str]:
    read = documented(Api, Api.__members__)
    rows = [
        (codes(path for path, one in INFERENCE_PATHS.items() if one is api), read[name])
        for name, api in Api.__members__.items()
        if api is not Api.MODELS
    ]
    yield from table(("path", "request"), rows)


def _bodies() -> Iterator[str]:
    yield from paragraph(
        f"The sidecar parses JSON bodies of up to {ALWAYS_PARSED_BYTES:,} bytes in full. It scans "
        "a larger body to its end for `model`, `cache_salt` and the fields of `sessionSources`. "
        f"It parses the beginning of such a body: up to {MAX_PARSED_BYTES:,} bytes, without images "
        f"in base64, and up to {MAX_PARSED_VALUES:,} strings, commas and opening brackets. The "
        "text after that is counted, but it is not part of the prefix or of a block. A body that "
        "is longer than its parsed beginning must be strict JSON, without `NaN` and `Infinity`. "
        "The scan accepts nesting deeper than 200 levels and numbers with thousands of digits; "
        "the inference server checks those. JSON must be UTF-8, with or without a byte order mark."
    )
    yield ""
    yield f"The sidecar searches the first {MAX_PARTS:,} parts of a multipart form."
