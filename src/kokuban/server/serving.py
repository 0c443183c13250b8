"""What every route shares: the model that is served, and the way from a body to token ids."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, TypeVar

from prometheus_client import CollectorRegistry
from starlette.requests import Request

from kokuban import __version__
from kokuban.core.errors import RequestError, UnknownModel
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.client import EngineInfo
from kokuban.observe.clock import Clock, SystemClock
from kokuban.observe.metrics import EngineCollector, ServingMetrics
from kokuban.server.history import MAX_TOKENS, History
from kokuban.server.keys import KeyRing
from kokuban.server.life import Drain
from kokuban.server.quota import Quotas
from kokuban.server.record import Record
from kokuban.server.settings import ServedModel, ServerSettings
from kokuban.server.timeout import timeout_of
from kokuban.server.work import off_loop
from kokuban.text.call_styles import STYLES
from kokuban.text.chat import ChatTemplate
from kokuban.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from kokuban.server.openai_models import ContentPart, SamplingFields, TemplateFields
    from kokuban.server.output_format import OutputForm
    from kokuban.server.tracing import Tracer

Made = TypeVar("Made")

MIN_TOKEN_BYTES = 128
"""The longest token is taken to have at least so many bytes. Generous, since what a tokenizer does
beside its vocabulary (composing characters, dropping spaces) may make a text shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """One served model with everything around it. Lives as long as the application."""

    model: ServedModel
    settings: ServerSettings
    clock: Clock
    metrics: ServingMetrics
    longest_token: int
    """Bytes of text that one token can stand for, at most."""

    history: History
    keys: KeyRing
    quotas: Quotas
    tracer: "Tracer | None"
    """Where spans are made; None: nowhere."""

    chat_template: ChatTemplate
    """The model's, with the operator's choice of parsers."""

    special_marks: Mapping[str, int] = field(default_factory=dict)
    """Marks of calls and thoughts that are special tokens; the parsers of answers must see them."""

    drain: Drain = field(default_factory=Drain)
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time of the start: `created` of the model."""

    @property
    def info(self) -> EngineInfo:
        return self.model.client.info

    @property
    def model_names(self) -> tuple[str, ...]:
        """What the model may be called; the first is what answers call it."""
        return (self.info.model, *self.settings.model_aliases)

    @property
    def fingerprint(self) -> str:
        """Changes with whatever may change the numbers: version, model, KV dtype, kernels."""
        info = self.info
        facts = f"{__version__}|{info.model}|{info.kv_dtype}|{info.isa}"
        return "fp_" + blake2b(facts.encode(), digest_size=5).hexdigest()

    def check_model(self, asked: str | None) -> None:
        """Raises `UnknownModel` when another model is asked for.

        Args:
            asked: None or "": the client names none, and means the one that there is.
        """
        if asked and asked not in self.model_names:
            raise UnknownModel(asked[:128], self.info.model)

    def new_record(self, request: Request, api: str, params: SamplingParams) -> Record:
        tracer = self.tracer
        request.state.record = record = Record(
            api=api,
            request_id=request.state.request_id,
            client_id=request.state.client_id or "-",
            clock=self.clock,
            metrics=self.metrics,
            n=params.n,
            max_tokens=params.max_tokens,
            started_s=self.clock.now(),
            model=self.info.model,
            trace=None if tracer is None else tracer.trace,
            parent={} if tracer is None else _parent_of(request),
            tenant=request.state.tenant,
            timeout_s=timeout_of(request, self.settings.request_timeout_s),
            account=request.state.account,
            scores=params.prompt_logprobs is not None,
        )
        return record

    def begin(
        self, record: Record, prompts: Sequence[Sequence[int]], cache_salt: str | None
    ) -> None:
        """Note what a request sends to the engine, now."""
        record.prompt_tokens = sum(map(len, prompts))
        record.pay(record.prompt_tokens)
        record.scope = cache_salt or ""
        record.submitted_s = self.clock.now()
        self.history.add(record, prompts)

    def encode(
        self, text: str, *, add_bos: bool, param: str = "prompt", parse_special: bool = True
    ) -> list[int]:
        """Ids of a raw prompt.

        Long texts take long: see `work.off_loop`.

        Args:
            param: the field that the text stands in.
            parse_special: whether special tokens may be written out in it.

        Raises:
            RequestError: the text cannot fit into the context, whatever its tokens are.
        """
        self._check_text(len(text.encode("utf-8", "replace")), param)
        return self.model.tokenizer.encode(text, add_bos=add_bos, parse_special=parse_special)

    async def encode_chat(self, body: "TemplateFields", num_bytes: int) -> list[int]:
        """Ids of a conversation; what users wrote is never read as a special token.

        Args:
            body: the messages.
            num_bytes: length of the body as it was sent.

        Raises:
            RequestError: see `_templated`.
        """
        return await self._templated(self.chat_template.encode_chat, body, num_bytes)

    async def render_chat(self, body: "TemplateFields", num_bytes: int) -> str:
        """A conversation as the template writes it: text for people, not to be encoded.

        Arguments and errors are those of `encode_chat`.
        """
        return await self._templated(self.chat_template.render_chat, body, num_bytes)

    async def _templated(
        self, write: Callable[..., Made], body: "TemplateFields", num_bytes: int
    ) -> Made:
        """What a method of the template makes of a conversation.

        Raises:
            RequestError: the messages cannot fit into the context, whatever their tokens are, or
                the template refuses them.
        """
        limit = self.info.max_context_tokens
        if len(body.messages) > limit:
            raise RequestError(
                f"there are {len(body.messages)} messages, and the context holds {limit} tokens; "
                f"send fewer messages or start the server with a larger --max-context-tokens",
                param="messages",
                code="context_length_exceeded",
            )
        continues = bool(body.continue_final_message)
        generation = body.add_generation_prompt
        if generation is None:
            generation = not continues

        def work() -> Made:
            self._check_text(sum(_length(message.content) for message in body.messages), "messages")
            return write(
                body.plain_messages(),
                tools=body.plain_tools(),
                add_generation_prompt=generation,
                continue_final_message=continues,
                kwargs=body.template_kwargs(),
            )

        return await off_loop(work, num_bytes)

    def _check_text(self, num_bytes: int, param: str) -> None:
        """Refuse what is surely too long before it costs minutes and gigabytes."""
        tokens = self.info.max_context_tokens
        limit = tokens * self.longest_token
        if num_bytes > limit:
            raise RequestError(
                f"the text has {num_bytes} bytes, but the context holds {tokens} tokens, which are "
                f"at most {limit} bytes; shorten the prompt or start the server with a larger "
                f"--max-context-tokens",
                param=param,
                code="context_length_exceeded",
            )


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
    clock = clock or SystemClock()
    keys = KeyRing(settings.api_keys, settings.admin_keys, settings.api_key_file, clock)
    template = _with_parsers(model.chat_template, settings)
    return Serving(
        model=model,
        chat_template=template,
        special_marks=_special_marks(template, model.tokenizer),
        settings=settings,
        clock=clock,
        keys=keys,
        quotas=Quotas(settings, clock),
        tracer=_tracer(settings),
        metrics=metrics,
        longest_token=_longest_token(model.tokenizer),
        history=History(settings.explain_requests, lambda: MAX_TOKENS // keys.num_tenants),
    )


def _with_parsers(template: ChatTemplate, settings: ServerSettings) -> ChatTemplate:
    """The template with the style that the operator named instead of the one it teaches."""
    style = template.style
    if settings.tool_parser in STYLES:
        style = replace(style, calls=STYLES[settings.tool_parser])
    if settings.reasoning_parser != "auto":
        style = replace(style, reasons=settings.reasoning_parser == "think")
    return template if style == template.style else template.with_style(style)


def _special_marks(template: ChatTemplate, tokenizer: Tokenizer) -> dict[str, int]:
    ids = ((mark, tokenizer.id_of(mark)) for mark in template.style.marks)
    return {mark: i for mark, i in ids if i is not None and tokenizer.is_special(i)}


def _tracer(settings: ServerSettings) -> "Tracer | None":
    if settings.otlp_traces_endpoint is None:
        return None
    from kokuban.server.tracing import open_tracer

    return open_tracer(settings.otlp_traces_endpoint)


def _parent_of(request: Request) -> dict[str, str]:
    """The headers that say which trace a request belongs to."""
    names = ("traceparent", "tracestate")
    return {name: request.headers[name] for name in names if name in request.headers}


def serving_of(request: Request) -> Serving:
    """The serving of the application that a request came to."""
    serving: Serving = request.app.state.serving
    return serving


def sampling_params(
    body: "SamplingFields",
    vocab_size: int,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    form: "OutputForm | None" = None,
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
        "grammar": form.grammar if form is not None else None,
    }
    return SamplingParams(**{name: value for name, value in given.items() if value is not None})


def check_stream_options(body: "SamplingFields") -> None:
    """Raises `RequestError` for options of a stream without a stream, as OpenAI does."""
    if body.stream_options is not None and not body.stream:
        raise RequestError(
            "stream_options is only allowed when stream is true", param="stream_options"
        )


def check_token_ids(ids: Sequence[int], vocab_size: int, param: str) -> None:
    """Raises `RequestError` for the first id that is no row of the model's embedding."""
    if not ids or (min(ids) >= 0 and max(ids) < vocab_size):
        return
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


def _longest_token(tokenizer: Tokenizer) -> int:
    """Bytes of text that one token can stand for, at most.

    An entry of the vocabulary has no fewer bytes than its text, except for a space in front.
    """
    # A character has 4 bytes at most: only few entries need be encoded to know that.
    long = [piece for piece in tokenizer.pieces if piece and len(piece) * 4 >= MIN_TOKEN_BYTES]
    longest = max((len(piece.encode("utf-8", "replace")) for piece in long), default=0)
    return max(MIN_TOKEN_BYTES, longest + 1)


def _length(content: "str | list[str | ContentPart] | None") -> int:
    """Bytes of a message's text."""
    if content is None:
        return 0
    parts = [content] if isinstance(content, str) else content
    texts = (part if isinstance(part, str) else part.text or "" for part in parts)
    return sum(len(text.encode("utf-8", "replace")) for text in texts)
