"""One HTTP request: its headers, and the resolution by as much of its body as Envoy shows."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Mapping
from random import Random
from types import MappingProxyType

from extproc.core.conversation.provisional import PENDING, Provisional
from extproc.core.conversation.request_headers import header_text
from extproc.core.fleet.load_report import FORMAT_HEADER, is_format
from extproc.core.fleet.subset import subset_of
from extproc.core.flow_control.headers import tenant_hash, timeout_of
from extproc.core.flow_control.waiter import Arrival
from extproc.core.request.form_body import model_in_form
from extproc.core.request.json_body import read_beginning, read_json_body, with_rest
from extproc.core.request.json_document import Document
from extproc.core.request.json_limits import ALWAYS_PARSED_BYTES
from extproc.core.request.json_scan import is_strict_object
from extproc.core.request.model_name import MODEL_HEADER, missing_model
from extproc.core.request.native_prompt import with_prompt
from extproc.core.request.paths import Api, model_in_query, without_query
from extproc.core.request.refusals import InvalidRequest, Refusal, known_models
from extproc.core.request.rename import renamed_form, renamed_json
from extproc.core.request.routing_key import prefix_is_final, salt_is_final
from extproc.core.request.stored_responses import (
    FIELDS,
    PREVIOUS,
    REQUEST_ID,
    STORE,
    with_request_id,
)
from extproc.core.routing.decision import Decision
from extproc.core.routing.resolved_request import ResolvedRequest
from extproc.core.routing.router import Router
from extproc.core.schema import FlowControlSpec

_LENGTH = "content-length"
_LONGEST_LENGTH = 12  # digits: a terabyte
_CONTENT_TYPE = "content-type"
_HEADERS = (_CONTENT_TYPE, _LENGTH, MODEL_HEADER, FORMAT_HEADER)
_TAIL_BYTES = 64
"""Bytes of a body in which its last character that is not blank is searched for."""
_QUOTED = 128
"""Characters of a path or a method that an error message repeats."""


class Request:
    """One HTTP request. It keeps only the headers that a reply can depend on."""

    __slots__ = (
        *(
            "_api",
            "_creates_response",
            "_has_prompt",
            "_headers",
            "_is_form",
            "_router",
            "_size",
            "_subset",
            "_whole",
        ),
    )

    def __init__(
        self,
        router: Router,
        api: Api = Api.GENERATE,
        headers: Mapping[str, bytes] = MappingProxyType({}),
        subset: tuple[str, ...] | None = None,
        *,
        creates_response: bool = False,
    ) -> None:
        self._router = router
        self._api = api
        self._creates_response = creates_response
        self._whole = False
        self._size = 0
        self._headers: dict[str, str] = {}
        self._has_prompt = api is Api.GENERATE or api is Api.NATIVE
        for names in (_HEADERS, router.catalog.key_headers):
            for name in names:
                if name in headers:
                    self._headers[name] = header_text(headers, name)
        self._subset = None if subset is None else subset_of(subset)
        self._is_form = api is Api.FORM and not _is_json(self._headers.get(_CONTENT_TYPE, ""))

    def allow_only(self, subset: tuple[str, ...] | None) -> None:
        """Apply a subset that came with the body, unless the headers had one."""
        if subset is not None and self._subset is None:
            self._subset = subset_of(subset)

    def resolve(self, head: bytes, *, complete: bool) -> ResolvedRequest:
        """Resolve by everything that Envoy will show of the body. Raises Refusal."""
        self._whole = complete
        self._size = len(head)
        if complete and self._has_prompt and len(head) > ALWAYS_PARSED_BYTES:
            resolved = self._resolve_by_beginning(head)
            if resolved is not None:
                return resolved
        name, document, read = self._read(head, complete=complete)
        name = name or self._named_elsewhere()
        if name is None:
            known = self._router.catalog.known()
            raise missing_model(self._api, known, None if complete else read)
        shown = 1.0 if complete else self._share(head)
        if read < len(head):
            shown *= read / len(head)
        return self._resolve(name, document, shown, cut=not complete or read < len(head))

    def is_whole(self, body: bytes | bytearray) -> tuple[bool, int]:
        """Return True if this is the whole body, and the number of bytes that were read to know it.

        The length decides, if it is known, else the end of the JSON object.
        """
        length = self._headers.get(_LENGTH)
        if length is not None:
            return length == str(len(body)), 0
        if self._is_form or not body[-_TAIL_BYTES:].rstrip().endswith(b"}"):
            return False, 0
        return is_strict_object(bytes(body)), len(body)

    def resolve_early(self, head: bytes) -> ResolvedRequest | None:
        """Resolve by the beginning of a body; None while the rest may change the result."""
        # `previous_response_id` may come after a long prompt.
        # The head may also end within a byte order mark.
        if BOM_UTF8.startswith(head) or head.isspace() or self._creates_response:
            return None
        name, document, _ = self._read(head, complete=False)
        return self._resolve_if_settled(name, document)

    def resolve_unseen(self) -> ResolvedRequest:
        """Resolve a request whose body Envoy does not show. Raises Refusal."""
        name = self._named_elsewhere()
        if name is None:
            raise InvalidRequest(
                "The router sees no body of this request, and more than one model is "
                f"configured: send the header '{MODEL_HEADER}'. "
                f"{known_models(self._router.catalog.known())}",
                param="model",
            )
        return self._resolve(name, None)

    def resolve_bare(self, path: str, method: str) -> ResolvedRequest:
        """Resolve a request without a body that names a model. Raises Refusal."""
        name = self._headers.get(MODEL_HEADER) or model_in_query(path) or self._named_elsewhere()
        if name is None:
            raise InvalidRequest(
                f"{method[:_QUOTED]} {without_query(path)[:_QUOTED]} does not name a model, and "
                f"more than one is configured: send the header '{MODEL_HEADER}', or add "
                f"'?model=' to the path. {known_models(self._router.catalog.known())}",
                param="model",
            )
        return self._resolve(name, None)._replace(rename=None)

    def resolve_stored(self, response_id: str) -> ResolvedRequest | None:
        """Resolve a request for a stored response; None if no endpoint has it."""
        for model in self._router.catalog.models.values():
            endpoints = model.snapshot.endpoints
            holder = self._router.fleet.response_ids.holder(response_id, endpoints)
            if holder is not None:
                resolved = self._resolve(model.spec.name, None)
                return resolved._replace(rename=None, holder=holder)
        return None

    def provisional(self, rng: Random) -> Provisional:
        """Return the model and one of its endpoints, as far as the headers determine them."""
        catalog = self._router.catalog
        named = self._headers.get(MODEL_HEADER)
        model, adapter = catalog.only(), ""
        if named and catalog.names(named):
            model, adapter = catalog.resolve(named)
        if model is None:
            return Provisional(PENDING)
        name = model.spec.name
        requested = named if named and catalog.names(named) else name
        snapshot = model.snapshot
        if self._subset is not None:
            snapshot = snapshot.restricted(self._subset)
        eligible = snapshot.eligible(adapter)
        target = rng.choice(eligible).address if eligible else PENDING
        return Provisional(target, requested, name)

    def edited(self, head: bytes, decision: Decision) -> bytes:
        """Return the body, or its head, with the servers' name for the model and the response's id.

        The request must have been resolved by it. Without a model and an id it stays the same.
        """
        if head.startswith(BOM_UTF8) and not self._is_form:
            return BOM_UTF8 + self.edited(head[len(BOM_UTF8) :], decision)
        name, response_id = decision.rename, decision.response_id
        if name is not None and self._is_form:
            head = renamed_form(head, self._headers.get(_CONTENT_TYPE, ""), name)
        elif name is not None:
            head = renamed_json(head, name, whole=self._whole)
        return head if response_id is None else with_request_id(head, response_id)

    def arrival(self, spec: FlowControlSpec, resolved: ResolvedRequest) -> Arrival:
        """Return the request's class, tenant, size and timeout, for flow control."""
        prompt, size = resolved.prompt, self._length() or self._size
        per_token = self._router.fleet.signals.token_sizes.of(resolved.model.spec.name)
        tokens = (size if prompt is None else prompt.bytes) / per_token
        objective = self._first(spec.objective_headers)
        tenant = tenant_hash(self._first(spec.tenant_headers))
        return Arrival(objective, tenant, max(1.0, tokens), timeout_of(self._headers))

    @property
    def wants_load_report(self) -> bool:
        """True if the client itself asks for a load report."""
        return is_format(self._headers.get(FORMAT_HEADER, ""))

    def _wanted(self) -> frozenset[str]:
        """Return the fields that are read at any position of a large body."""
        fields = self._router.catalog.key_fields
        return fields | FIELDS if self._creates_response else fields

    def _named_elsewhere(self) -> str | None:
        """Return the model that the header names, else the only one that is configured."""
        return self._headers.get(MODEL_HEADER) or self._router.catalog.default()

    def _resolve(
        self, name: str, document: Document | None, shown: float = 1.0, *, cut: bool = False
    ) -> ResolvedRequest:
        headers, subset = self._headers, self._subset
        resolved = self._router.resolve(name, document, headers, subset, shown=shown, cut=cut)
        if not self._creates_response or document is None:
            return resolved
        ids, model = self._router.fleet.response_ids, resolved.model
        stores = document.get(STORE) is not False and document.get(REQUEST_ID) is None
        return resolved._replace(
            holder=ids.holder(document.get(PREVIOUS), model.snapshot.endpoints),
            stores=stores and model.spec.response_ids,
        )

    def _resolve_by_beginning(self, body: bytes) -> ResolvedRequest | None:
        """Resolve a large complete body by its beginning; None if that does not decide it."""
        try:
            beginning = read_beginning(body)
            if beginning is None or beginning.model is None or self._reads_prompts(beginning.model):
                return None
            checked = with_rest(beginning, body, self._wanted())
            if checked is None:
                return None
            return self._resolve_if_settled(checked.model, self._prompt_fields(checked.document))
        except Refusal:
            return None  # the error of the full reading is more precise

    def _resolve_if_settled(
        self, name: str | None, document: Document | None
    ) -> ResolvedRequest | None:
        """Resolve by the beginning of a body, if the rest cannot change the result."""
        if name is None or self._reads_prompts(name):
            return None  # the strategy reads all of the prompt
        resolved = self._resolve(name, document, cut=True)
        if resolved.model.strategy.reads_prompts:
            return None
        if not resolved.session and not salt_is_final(document):
            return None
        spec = resolved.model.spec.load_balancing.prefix_hash
        settled = prefix_is_final(resolved.prefix, document, spec, resolved.session)
        return resolved if settled and resolved.settled else None

    def _reads_prompts(self, name: str) -> bool:
        """Return True if the model's strategy reads prompts; a split's target is not known yet."""
        catalog = self._router.catalog
        return name not in catalog.splits and catalog.resolve(name)[0].strategy.reads_prompts

    def _share(self, head: bytes) -> float:
        """Return the head's share of the body; 1 if the length of the body is unknown."""
        length = self._length()
        return len(head) / max(len(head), length) if length else 1.0

    def _length(self) -> int:
        """Return the body's length; 0 if it is unknown."""
        length = self._headers.get(_LENGTH, "")
        is_number = length.isascii() and length.isdigit() and len(length) <= _LONGEST_LENGTH
        return int(length) if is_number else 0

    def _first(self, names: tuple[str, ...]) -> str:
        """Return the first of these headers that has a value."""
        return next((self._headers[name] for name in names if self._headers.get(name)), "")

    def _read(self, head: bytes, *, complete: bool) -> tuple[str | None, Document | None, int]:
        """Return the model's name, the document, and the bytes of the head that were parsed.

        The document is None if it cannot hold a prompt.
        """
        if self._is_form:
            return model_in_form(head, self._headers.get(_CONTENT_TYPE, "")), None, len(head)
        fields = self._wanted() if len(head) > ALWAYS_PARSED_BYTES else ()
        model, document, parsed_bytes = read_json_body(head, complete=complete, fields=fields)
        return model, self._prompt_fields(document), parsed_bytes

    def _prompt_fields(self, document: Document) -> Document | None:
        """Return the document with its prompt under a known key; None if it holds no prompt."""
        if self._api is Api.NATIVE:
            return with_prompt(document)
        return document if self._has_prompt else None


def _is_json(content_type: str) -> bool:
    return content_type.lower().startswith("application/json")
