"""What every route shares: the model that is served, and the way from a body to token ids."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from fastapi import Request
from prometheus_client import CollectorRegistry

from kokuban import __version__
from kokuban.core.errors import RequestError, UnknownModel
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.client import EngineInfo
from kokuban.observe.clock import Clock, SystemClock
from kokuban.observe.metrics import EngineCollector, ServingMetrics
from kokuban.server.life import Drain
from kokuban.server.openai_models import SamplingFields, TemplateFields
from kokuban.server.record import Record
from kokuban.server.settings import ServedModel, ServerSettings

INLINE_CHARACTERS = 8192
"""Longer texts are templated and tokenised in a worker thread: below it the hop costs more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One served model with everything around it. Lives as long as the application."""

    model: ServedModel
    settings: ServerSettings
    clock: Clock
    metrics: ServingMetrics
    drain: Drain = field(default_factory=Drain)
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time of the start: `created` of the model."""

    @property
    def info(self) -> EngineInfo:
        return self.model.client.info

    @property
    def fingerprint(self) -> str:
        """Changes with whatever may change the numbers: version, model, KV dtype, kernels."""
        info = self.info
        facts = f"{__version__}|{info.model}|{info.kv_dtype}|{info.isa}"
        return "fp_" + blake2b(facts.encode(), digest_size=5).hexdigest()

    def check_model(self, asked: str | None) -> None:
        """Raises `UnknownModel` when another model is asked for."""
        if asked is not None and asked != self.info.model:
            raise UnknownModel(asked[:128], self.info.model)

    def new_record(self, request: Request, api: str, params: SamplingParams) -> Record:
        return Record(
            api=api,
            request_id=request.state.request_id,
            client_id=request.state.client_id or "-",
            clock=self.clock,
            metrics=self.metrics,
            n=params.n,
            max_tokens=params.max_tokens,
            started_s=self.clock.now(),
        )

    async def encode(self, text: str, *, add_bos: bool) -> list[int]:
        """Ids of a raw prompt, in which special tokens may be written out."""

        def work() -> list[int]:
            return self.model.tokenizer.encode(text, add_bos=add_bos, parse_special=True)

        return await _off_loop(work, len(text))

    async def encode_chat(self, body: TemplateFields) -> list[int]:
        """Ids of a conversation; what users wrote is never read as a special token."""
        messages = [message.model_dump(exclude_unset=True) for message in body.messages]
        tools = [tool.model_dump(exclude_unset=True) for tool in body.tools or ()]
        continues = bool(body.continue_final_message)
        generation = body.add_generation_prompt
        if generation is None:
            generation = not continues

        def work() -> list[int]:
            return self.model.chat_template.encode_chat(
                messages,
                tools=tools or None,
                add_generation_prompt=generation,
                continue_final_message=continues,
                kwargs=body.chat_template_kwargs or {},
            )

        size = sum(_length(message.content) for message in body.messages)
        return await _off_loop(work, size + 256 * (len(messages) + len(tools)))


def new_serving(
    model: ServedModel, settings: ServerSettings, clock: Clock | None = None
) -> Serving:
    """A serving with metrics in a registry of its own."""
    info = model.client.info
    registry = CollectorRegistry()
    registry.register(EngineCollector(info.model, model.client.stats))
    metrics = ServingMetrics(info.model, registry)
    metrics.describe(
        {
            "block_size": str(info.block_size),
            "num_blocks": str(info.num_blocks),
            "kv_dtype": info.kv_dtype,
            "max_context_tokens": str(info.max_context_tokens),
        }
    )
    return Serving(model=model, settings=settings, clock=clock or SystemClock(), metrics=metrics)


def serving_of(request: Request) -> Serving:
    """The serving of the application that a request came to."""
    serving: Serving = request.app.state.serving
    return serving


def sampling_params(
    body: SamplingFields,
    vocab_size: int,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """What the client asked for, checked; what it left out has the default.

    Raises:
        RequestError: a value or a token id is out of range; names the field.
    """
    stop = body.stop
    bias = _logit_bias(body.logit_bias or {}, vocab_size)
    check_token_ids(body.stop_token_ids or (), vocab_size, "stop_token_ids")
    given: dict[str, Any] = {
        "n": body.n,
        "max_tokens": max_tokens,
        "min_tokens": body.min_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "top_k": body.top_k,
        "min_p": body.min_p,
        "presence_penalty": body.presence_penalty,
        "frequency_penalty": body.frequency_penalty,
        "repetition_penalty": body.repetition_penalty,
        "logit_bias": bias,
        "seed": body.seed,
        "stop": (stop,) if isinstance(stop, str) else tuple(stop or ()),
        "stop_token_ids": tuple(body.stop_token_ids or ()),
        "include_stop": body.include_stop_str_in_output,
        "ignore_eos": body.ignore_eos,
        "skip_special_tokens": body.skip_special_tokens,
        "logprobs": logprobs,
        "prompt_logprobs": prompt_logprobs,
    }
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def check_stream_options(body: SamplingFields) -> None:
    """Raises `RequestError` for options of a stream without a stream, as OpenAI does."""
    if body.stream_options is not None and not body.stream:
        raise RequestError(
            "stream_options is only allowed when stream is true", param="stream_options"
        )


def check_token_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises `RequestError` for the first id that is no row of the model's embedding."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{param} holds the token id {token_id}; ids go from 0 to {vocab_size - 1}",
                param=param,
            )


def _logit_bias(biases: dict[str, float], vocab_size: int) -> dict[int, float]:
    by_id: dict[int, float] = {}
    for key, bias in biases.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise RequestError(
                f"logit_bias has the key {key[:32]!r}, which is no token id", param="logit_bias"
            )
        by_id[int(key)] = bias
    check_token_ids(tuple(by_id), vocab_size, "logit_bias")
    return by_id


def _length(content: object) -> int:
    if isinstance(content, str):
        return len(content)
    if isinstance(content, list):
        return sum(len(part if isinstance(part, str) else part.text or "") for part in content)
    return 0


async def _off_loop(work: Any, num_characters: int) -> list[int]:
    ids: list[int]
    if num_characters <= INLINE_CHARACTERS:
        ids = work()
    else:
        ids = await asyncio.to_thread(work)
    return ids
