"""POST /v1/completions: the older face, for raw prompts, token ids, echo and scoring."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from kokuban.core.errors import PromptTooLong, RequestError
from kokuban.core.request import FinishReason
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.generation import TextDelta, generate
from kokuban.server.answer import respond
from kokuban.server.answer_size import check_num_logprobs
from kokuban.server.body import read_body
from kokuban.server.completion_form import CompletionForm, Prompt
from kokuban.server.openai_models import CompletionRequest, prompt_rows
from kokuban.server.output_format import OutputForm, naming, output_form
from kokuban.server.pins import prompt_pins
from kokuban.server.record import Record
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import (
    Serving,
    check_stream_options,
    check_token_ids,
    sampling_params,
    serving_of,
)
from kokuban.server.sessions import session_of
from kokuban.server.work import off_loop
from kokuban.text.infill import find_infill

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default for this route."""

MAX_ANSWERS = 1024
"""Prompts times choices of one HTTP request."""

MAX_PROMPT_TOKENS = 2**20
"""Tokens of all prompts of one HTTP request together; a longer context has room for itself. What
is done for each of them on the event loop takes some 20 ms at this limit."""

router = Router(KeyScope.INFER)


@router.post("/v1/completions", queues=True)
async def completions(request: Request) -> Response:
    """Continue one text or several."""
    serving = serving_of(request)
    body, num_bytes = await read_body(request, serving.settings, CompletionRequest)
    serving.check_model(body.model)
    check_stream_options(body)
    wanted = await off_loop(partial(output_form, body), num_bytes)
    params = _params(body, serving.info.vocab_size, wanted)
    session = session_of(request, body.prompt_cache_key)
    record = serving.new_record(request, "completions", params)
    record.compiles = params.grammar is not None
    prompts = await off_loop(partial(_prompts, serving, body, params.n), num_bytes)
    ids = [prompt.token_ids for prompt in prompts]
    context = serving.info.max_context_tokens
    check_num_logprobs(params, ids, context, stream=bool(body.stream))
    serving.begin(record, ids, body.cache_salt)
    form = CompletionForm(serving, body, record, prompts, params)
    if _is_echo_only(body):
        deltas = _nothing(len(prompts) * params.n)
    else:
        deltas = _merge(
            [
                _generate(serving, body, request, record, prompt, params, index, session)
                for index, prompt in enumerate(prompts)
            ]
        )
    if wanted is not None:
        deltas = naming(deltas, wanted.param)
    return respond(serving, deltas, form, record, stream=bool(body.stream))


def _is_echo_only(body: CompletionRequest) -> bool:
    """Whether nothing has to be computed at all."""
    return bool(body.echo) and body.max_tokens == 0 and body.logprobs is None


def _params(body: CompletionRequest, vocab_size: int, form: OutputForm | None) -> SamplingParams:
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling_params(
        body,
        vocab_size,
        max_tokens=None if _is_echo_only(body) else max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
        form=form,
    )
    if body.num_ranked is None:
        return params
    return replace(params, n=body.num_ranked, logprobs=params.logprobs or 0)


def _prompts(serving: Serving, body: CompletionRequest, n: int) -> list[Prompt]:
    """Every prompt as token ids, all checked before the first one runs."""
    rows = _rows(body, n)
    limit = max(MAX_PROMPT_TOKENS, serving.info.max_context_tokens)
    add_bos = serving.model.tokenizer.add_bos
    if body.add_special_tokens is not None:
        add_bos = body.add_special_tokens
    fill = None if body.suffix is None else _filling(serving, body.suffix, add_bos=add_bos)
    prompts: list[Prompt] = []
    num_tokens = 0
    for row in rows:
        prompt = _prompt(serving, row, add_bos=add_bos and fill is None)
        prompts.append(prompt if fill is None else fill(prompt))
        num_tokens += len(prompts[-1].token_ids)
        if num_tokens > limit:
            raise RequestError(
                f"the first {len(prompts)} of {len(rows)} prompts have {num_tokens} tokens "
                f"together; the limit of one request is {limit}: send several requests",
                param="prompt",
            )
    return prompts


def _filling(serving: Serving, suffix: str, *, add_bos: bool) -> Callable[[Prompt], Prompt]:
    """What makes a prompt with a gap of the text in front of it."""
    tokenizer = serving.model.tokenizer
    infill = find_infill(tokenizer)
    after = serving.encode(suffix, add_bos=False)
    first = [tokenizer.bos_id] if add_bos and tokenizer.bos_id is not None else []

    def fill(prompt: Prompt) -> Prompt:
        return Prompt(prompt.text, [*first, *infill.prompt(prompt.token_ids, after)])

    return fill


def _ends(serving: Serving, body: CompletionRequest) -> frozenset[int]:
    """Tokens that end the text, beside those that the client names."""
    ends = serving.model.end_token_ids
    return ends if body.suffix is None else ends | find_infill(serving.model.tokenizer).ends


def _rows(body: CompletionRequest, n: int) -> Sequence[str | list[int]]:
    """The prompts, as they were sent."""
    rows = prompt_rows(body.prompt)
    if len(rows) * n > MAX_ANSWERS:
        raise RequestError(
            f"{len(rows)} prompts with n={n} are {len(rows) * n} answers; the limit of one request "
            f"is {MAX_ANSWERS}",
            param="prompt",
        )
    return rows


def _prompt(serving: Serving, row: str | list[int], *, add_bos: bool) -> Prompt:
    if isinstance(row, str):
        prompt = Prompt(row, serving.encode(row, add_bos=add_bos))
    else:
        if len(row) >= serving.info.max_context_tokens:
            error = PromptTooLong(len(row), serving.info.max_context_tokens)
            error.param = "prompt"
            raise error
        check_token_ids(row, serving.info.vocab_size, "prompt")
        prompt = Prompt(None, row)
    if not prompt.token_ids:
        raise RequestError(
            "the prompt is empty, and this model has no token that could begin a text; send at "
            "least one character",
            param="prompt",
        )
    return prompt


async def _generate(
    serving: Serving,
    body: CompletionRequest,
    request: Request,
    record: Record,
    prompt: Prompt,
    params: SamplingParams,
    index: int,
    session: str,
) -> AsyncGenerator[TextDelta]:
    """The deltas of prompt number `index`, with choices numbered over all prompts."""
    deltas = generate(
        serving.model.client,
        serving.model.tokenizer,
        prompt.token_ids,
        params,
        request_id=f"{record.request_id}-{index}",
        end_token_ids=_ends(serving, body),
        continues=True,
        priority=body.priority or 0,
        tenant=request.state.tenant,
        cache_scope=body.cache_salt or "",
        session=session,
        pins=prompt_pins(body, len(prompt.token_ids)),
    )
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                yield replace(delta, choice=index * params.n + delta.choice) if index else delta
        except PromptTooLong as error:
            error.param = "prompt"
            raise


async def _nothing(num_choices: int) -> AsyncGenerator[TextDelta]:
    """The end of choices for which nothing is computed."""
    for choice in range(num_choices):
        yield TextDelta(choice=choice, text="", finish=FinishReason.LENGTH)


MAX_MERGED = 64
"""Deltas of several prompts that lie between them and who reads: beyond it they wait."""

Inbox = asyncio.Queue[TextDelta | Exception | None]
"""Deltas of several prompts; why one failed; None: one has ended."""


async def _forward(source: AsyncGenerator[TextDelta], inbox: Inbox) -> None:
    try:
        async with aclosing(source):
            async for delta in source:
                await inbox.put(delta)
        await inbox.put(None)
    except Exception as error:  # noqa: BLE001 - raised again by whoever reads the inbox
        await inbox.put(error)


async def _merge(sources: Sequence[AsyncGenerator[TextDelta]]) -> AsyncGenerator[TextDelta]:
    """The deltas of several prompts as they come; the first failure ends all.

    To hand a prompt to the engine takes time that grows with its length: one in each turn of the
    event loop, so that other streams go on meanwhile.
    """
    if len(sources) == 1:
        async with aclosing(sources[0]) as only:
            async for delta in only:
                yield delta
        return
    inbox: Inbox = asyncio.Queue(MAX_MERGED)
    tasks: list[asyncio.Task[None]] = []
    try:
        for source in sources:
            tasks.append(asyncio.create_task(_forward(source, inbox)))
            await asyncio.sleep(0)
        num_open = len(tasks)
        while num_open:
            news = await inbox.get()
            if isinstance(news, Exception):
                raise news
            if news is None:
                num_open -= 1
            else:
                yield news
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
