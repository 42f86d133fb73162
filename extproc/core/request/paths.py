"""The paths of inference servers, and the part of a request that the sidecar reads for each.

A path matches by its last segments. A gateway may serve the API below a prefix and remove the
prefix after ext_proc: `/team/llama/v1/completions` matches `/v1/completions`. The longest known
suffix wins. The list contains the routes of vLLM, vLLM-Omni and SGLang. Routes that manage a server
(weights, adapters, caches, profiles) are missing on purpose.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import NamedTuple
from urllib.parse import parse_qs, unquote


class Api(Enum):
    """The part of a request to a path that the sidecar reads."""

    GENERATE = auto()
    """JSON with a model, and with a prompt whose prefix a KV cache can hold."""

    NATIVE = auto()
    """JSON with a model, and with such a prompt in `text`, `input_ids` or `token_ids`."""

    MODEL_ONLY = auto()
    """JSON with a model, without a prompt that is worth caching."""

    FORM = auto()
    """`multipart/form-data` with a field `model`, or JSON with a model."""

    BARE = auto()
    """Nothing in the body. The model comes from the header `x-model` or the query parameter
    `model`, or it is the only configured model."""

    MODELS = auto()
    """Nothing: the sidecar itself responds."""


MODELS_PATH = "/v1/models"
RESPONSES_PATH = "/v1/responses"

INFERENCE_PATHS: dict[str, Api] = {
    "/v1/chat/completions": Api.GENERATE,
    "/v1/chat/completions/batch": Api.GENERATE,
    "/v1/completions": Api.GENERATE,
    "/v1/responses": Api.GENERATE,
    "/v1/messages": Api.GENERATE,
    "/invocations": Api.GENERATE,
    "/api/chat": Api.GENERATE,
    "/generate": Api.NATIVE,
    "/inference/v1/generate": Api.NATIVE,
    "/v1/embeddings": Api.MODEL_ONLY,
    "/v2/embed": Api.MODEL_ONLY,
    "/encode": Api.MODEL_ONLY,
    "/v1/rerank": Api.MODEL_ONLY,
    "/v2/rerank": Api.MODEL_ONLY,
    "/rerank": Api.MODEL_ONLY,
    "/v1/score": Api.MODEL_ONLY,
    "/score": Api.MODEL_ONLY,
    "/generative_scoring": Api.MODEL_ONLY,
    "/v1/decisions": Api.MODEL_ONLY,
    "/pooling": Api.MODEL_ONLY,
    "/v1/classify": Api.MODEL_ONLY,
    "/classify": Api.MODEL_ONLY,
    "/v1/tokenize": Api.MODEL_ONLY,
    "/tokenize": Api.MODEL_ONLY,
    "/v1/detokenize": Api.MODEL_ONLY,
    "/detokenize": Api.MODEL_ONLY,
    "/v1/messages/count_tokens": Api.MODEL_ONLY,
    "/v1/responses/input_tokens": Api.MODEL_ONLY,
    "/v1/chat/completions/render": Api.MODEL_ONLY,
    "/v1/chat/completions/derender": Api.MODEL_ONLY,
    "/v1/completions/render": Api.MODEL_ONLY,
    "/v1/completions/derender": Api.MODEL_ONLY,
    "/v1/audio/speech": Api.MODEL_ONLY,
    "/v1/audio/speech/batch": Api.MODEL_ONLY,
    "/v1/audio/generate": Api.MODEL_ONLY,
    "/v1/images/generations": Api.MODEL_ONLY,
    "/vertex_generate": Api.MODEL_ONLY,
    "/v1/audio/transcriptions": Api.FORM,
    "/v1/audio/translations": Api.FORM,
    "/v1/images/edits": Api.FORM,
    "/v1/videos": Api.FORM,
    "/v1/videos/sync": Api.FORM,
    "/v1/audio/voices": Api.FORM,
    "/v1/responses/*": Api.BARE,
    "/v1/responses/*/cancel": Api.BARE,
    "/v1/videos/*": Api.BARE,
    "/v1/videos/*/content": Api.BARE,
    "/v1/audio/voices/*": Api.BARE,
    # WebSockets: the model is in a message, which ext_proc does not receive.
    "/v1/realtime": Api.BARE,
    "/v1/realtime/video": Api.BARE,
    "/v1/realtime/robot/openpi": Api.BARE,
    "/v1/duplex": Api.BARE,
    "/v1/audio/speech/stream": Api.BARE,
    "/v1/video/chat/stream": Api.BARE,
}
"""All paths that are routed. `*` is one segment: the id of a stored object."""

BODILESS_METHODS = frozenset({"GET", "HEAD", "DELETE", "OPTIONS"})
"""Methods whose requests have no body."""

_LIST_PATHS = frozenset({"/v1/videos", "/v1/audio/voices"})
"""Paths on which GET lists the stored objects of a server."""

ANTHROPIC_PATH = "/v1/messages"
"""Beginning of Anthropic's own paths."""

ANTHROPIC_VERSION = "anthropic-version"
"""Request header that Anthropic's clients always send."""

_ANTHROPIC_PATHS = frozenset({ANTHROPIC_PATH, f"{ANTHROPIC_PATH}/count_tokens"})

_ANY = "*"
_MAX_SEGMENTS = 4
"""Number of segments of the longest known path."""

_MAX_QUERY_LENGTH = 4096


class Route(NamedTuple):
    """A known path."""

    api: Api
    path: str
    """The key of INFERENCE_PATHS that matched, or MODELS_PATH. It has no prefix and no query."""
    stored_id: str = ""
    """The segment that `*` matched: the id of a response, a video or a voice. Only one replica has
    the object. For MODELS_PATH: the requested model, or empty for all models."""

    @property
    def is_anthropic(self) -> bool:
        """True if the client expects errors in Anthropic's shape."""
        return self.path in _ANTHROPIC_PATHS


_ROUTES = {path: Route(api, path) for path, api in INFERENCE_PATHS.items()}
_EXACT = {path: route for path, route in _ROUTES.items() if _ANY not in path}
_WITH_ID = {path: route for path, route in _ROUTES.items() if _ANY in path}


def match(path: str, method: str = "POST") -> Route | None:
    """Return the route of a `:path` pseudo-header, or None for an unknown path.

    Prefixes, query strings, trailing slashes and double slashes do not matter.
    """
    path = without_query(path)
    route = _EXACT.get(path)
    if route is None:
        route = _match_normalized(_normalized(path), method)
    if method in BODILESS_METHODS and route is not None and route.path in _LIST_PATHS:
        return Route(Api.BARE, route.path)
    return route


def model_in_query(path: str) -> str:
    """Return the query parameter `model` of a path; empty if there is none.

    OpenAI's realtime API uses it.
    """
    query = path.partition("?")[2]
    if "model=" not in query or len(query) > _MAX_QUERY_LENGTH:
        return ""
    return parse_qs(query).get("model", [""])[0]


def without_query(path: str) -> str:
    """Return a `:path` pseudo-header without its query string."""
    return path.partition("?")[0]


def _normalized(path: str) -> str:
    while "//" in path:
        path = path.replace("//", "/")
    return path.rstrip("/")


def _match_normalized(path: str, method: str) -> Route | None:
    if method in ("GET", "HEAD"):
        # This path comes first, because a model's name may end with another path.
        models = _match_models(path)
        if models is not None:
            return models
    for start in _suffixes(path):
        suffix = path[start:]
        route = _EXACT.get(suffix) or _match_with_id(suffix)
        if route is not None:
            return route
    return None


def _suffixes(path: str) -> list[int]:
    """Return the start positions of the suffixes of up to four segments, the longest first."""
    starts: list[int] = []
    start = len(path)
    while start > 0 and len(starts) < _MAX_SEGMENTS:
        start = path.rfind("/", 0, start)
        if start >= 0:
            starts.insert(0, start)
    return starts


def _match_with_id(suffix: str) -> Route | None:
    """Match all segments of a suffix, with an id at the end or before the end."""
    before, _, last = suffix.rpartition("/")
    route = _WITH_ID.get(f"{before}/{_ANY}")
    if route is not None:
        return Route(route.api, route.path, unquote(last))
    before, _, stored_id = before.rpartition("/")
    route = _WITH_ID.get(f"{before}/{_ANY}/{last}")
    if route is not None:
        return Route(route.api, route.path, unquote(stored_id))
    return None


def _match_models(path: str) -> Route | None:
    _, found, name = path.partition(MODELS_PATH)
    if not found or (name and not name.startswith("/")):
        return None
    return Route(Api.MODELS, MODELS_PATH, unquote(name[1:]))
