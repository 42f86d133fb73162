"""Generation requests: from the request to the engine, and from its tokens to a response."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count

import xxhash
from aiohttp import web

from extproc.lab.stand_ins import orca, tokens
from extproc.lab.stand_ins.engine_task import EngineTask, Generation
from extproc.lab.stand_ins.generation_request import BadRequest, GenerationRequest
from extproc.lab.stand_ins.http_responses import json_response
from extproc.lab.stand_ins.response_shape import ResponseShape, TokenCounts, Words
from extproc.lab.stand_ins.served_models import ServedModels

_EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


@dataclass(frozen=True)
class Run:
    """A request in the engine: one generation and one text for each prompt."""

    model: str
    wanted: GenerationRequest
    number: int
    created: int
    """Unix time in seconds."""

    generations: list[Generation]
    texts: list[Words]
    prompt_tokens: int

    async def all(self) -> None:
        """Wait for the last token."""
        for generation in self.generations:
            await generation.all()

    @property
    def counts(self) -> TokenCounts:
        """Tokens of all prompts and choices together."""
        completion = len(self.texts) * self.wanted.max_tokens
        cached = sum(generation.cached_tokens for generation in self.generations)
        return TokenCounts(self.prompt_tokens, completion, cached)


class Generations:
    """The generations of one replica."""

    def __init__(self, engine: EngineTask, models: ServedModels, max_model_len: int) -> None:
        self._engine = engine
        self._models = models
        self._max_model_len = max_model_len
        self._numbers = count(1)

    def model_of(self, wanted: GenerationRequest) -> str:
        """Return the model name for the response. Raises RequestError for an unknown model."""
        model = wanted.model or self._models.name
        self._models.adapter_of(model)
        return model

    def start(self, wanted: GenerationRequest) -> Run:
        """Submit a request to the engine. Raises RequestError."""
        model = self.model_of(wanted)
        adapter = self._models.adapter_of(model)
        prompt_tokens = self._checked(wanted)
        run = Run(model, wanted, next(self._numbers), int(time.time()), [], [], prompt_tokens)
        for prompt in wanted.prompts:
            words = tokens.answer(prompt, wanted.max_tokens)
            parent = _separated(adapter, wanted.salt)
            blocks = tokens.block_ids(prompt + b"".join(words), parent)
            length = tokens.count(prompt)
            try:
                generation = self._engine.submit(length, wanted.max_tokens, blocks, adapter)
            except ValueError as error:
                self.abort(run)
                raise BadRequest(str(error)) from None
            run.generations.append(generation)
            run.texts.append(words)
        return run

    def abort(self, run: Run) -> None:
        """End a run early; do nothing if it has finished."""
        for generation in run.generations:
            self._engine.abort(generation)

    async def respond(
        self,
        request: web.Request,
        run: Run,
        shape: ResponseShape,
        headers: Mapping[str, str],
        report: Callable[[web.Request], Mapping[str, str]] = lambda _: {},
    ) -> web.StreamResponse:
        """Send the response of a run.

        `headers` are added to a stream, the headers of `report` to a response without streaming.
        """
        try:
            if run.wanted.stream:
                response = web.StreamResponse(headers={**_EVENT_STREAM, **headers})
                # As in vLLM, the headers are sent before the first token.
                await response.prepare(request)
                await _stream(response, run, shape)
                return response
            await run.all()
            whole = json_response(shape.whole(run.texts, run.counts))
            whole.headers.update(report(request))
            return whole
        finally:
            # The handler is cancelled if the client disconnects.
            self.abort(run)

    def load_report(self, request: web.Request) -> Mapping[str, str]:
        """Return the load report header that vLLM adds to completions on request."""
        return orca.report(request.headers, self._engine.replica)

    def _checked(self, wanted: GenerationRequest) -> int:
        """Return the tokens of all prompts. Raises BadRequest if one is too long."""
        lengths = [tokens.count(prompt) for prompt in wanted.prompts]
        if max(lengths) + wanted.max_tokens > self._max_model_len:
            raise BadRequest(
                f"This model's maximum context length is {self._max_model_len} tokens. However, "
                f"you requested {wanted.max_tokens} output tokens and your prompt contains "
                f"{max(lengths)} input tokens."
            )
        return sum(lengths)


async def _stream(response: web.StreamResponse, run: Run, shape: ResponseShape) -> None:
    """Write the chunks of each token when its step ends; to a slow client, several at once."""
    if preface := shape.preface():
        await response.write(preface)
    for index, (generation, words) in enumerate(zip(run.generations, run.texts, strict=True)):
        sent = 0
        while new := await generation.more():
            until = sent + new
            last = until == run.wanted.max_tokens
            # The order matters: a response may number its events as it creates them.
            chunks = b"" if sent or index else shape.opening()
            chunks += shape.token_chunks(words[sent:until], last, index)
            if last and index == len(run.texts) - 1:
                chunks += shape.closing(run.texts, run.counts)
            await response.write(chunks)
            sent = until


def _separated(adapter: str, salt: str) -> int:
    """Return a seed that separates the blocks of an adapter and a salt from all others."""
    if not adapter and not salt:
        return 0
    name = f"{adapter}\0{salt}" if salt else adapter
    return xxhash.xxh64_intdigest(name.encode("utf-8", "surrogatepass"))
