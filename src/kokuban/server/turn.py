"""One turn of a conversation, whichever API asked for it.

    turn = await begin_turn(serving, request, body, num_bytes, api="chat")
    return respond(serving, turn.deltas, SomeForm(...), turn.record, stream=...)

Every chat-like API (chat completions, responses, messages) turns its body into a `ChatRequest`,
the form that templates know, and shows the deltas in a shape of its own.
"""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.requests import Request

from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.generation import TextDelta, generate
from kokuban.server.answer_size import check_num_logprobs
from kokuban.server.openai_models import ChatRequest
from kokuban.server.output_format import OutputForm, naming, output_form
from kokuban.server.pins import chat_pins
from kokuban.server.reading import TOOLS_PARAM, blaming, parted, reader_of
from kokuban.server.record import Record
from kokuban.server.serving import Serving, sampling_params
from kokuban.server.sessions import session_of
from kokuban.server.tool_choice import ToolPlan, plan_tools
from kokuban.server.tool_pause import pausing
from kokuban.server.work import off_loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn that is ready to run; nothing runs before its deltas are asked for."""

    deltas: AsyncGenerator[TextDelta]
    """With `parts`."""

    record: Record
    params: SamplingParams
    prompt: Sequence[int]
    """Token ids."""


async def begin_turn(
    serving: Serving, request: Request, body: ChatRequest, num_bytes: int, *, api: str
) -> Turn:
    """Check a conversation and make it ready to run.

    Args:
        request: whose headers name the session and the tenant.
        body: the conversation and how it goes on.
        num_bytes: length of the body as it was sent.
        api: the name of the API in log and metrics.

    Raises:
        RequestError: the model cannot answer this; names the field.
        UnknownModel: another model is asked for.
    """
    serving.check_model(body.model)
    params, form = await _read_params(serving, body, num_bytes)
    session = session_of(request, body.prompt_cache_key)
    record = serving.new_record(request, api, params)
    plan, prompt = await _write_prompt(serving, body, num_bytes)
    reader = reader_of(serving, prompt, plan)
    params = await off_loop(partial(reader.bound, params), num_bytes)
    record.compiles = params.grammar is not None
    check_num_logprobs(params, [prompt], serving.info.max_context_tokens, stream=bool(body.stream))
    pins = await chat_pins(serving, body, prompt, num_bytes)
    serving.begin(record, [prompt], body.cache_salt)
    deltas = generate(
        serving.model.client,
        serving.model.tokenizer,
        prompt,
        params,
        request_id=record.request_id,
        end_token_ids=serving.model.end_token_ids,
        continues=bool(body.continue_final_message),
        priority=body.priority or 0,
        tenant=request.state.tenant,
        cache_scope=body.cache_salt or "",
        session=session,
        pins=pins,
        shown=serving.special_marks.values(),
    )
    if params.grammar is not None:
        deltas = _naming(deltas, form, plan)
    deltas = parted(deltas, reader.parser)
    if session and plan.tools:
        tenant = request.state.tenant
        deltas = pausing(deltas, serving.model.client, n=params.n, tenant=tenant, session=session)
    return Turn(deltas=deltas, record=record, params=params, prompt=prompt)


async def count_prompt(serving: Serving, body: ChatRequest, num_bytes: int) -> int:
    """Tokens of the prompt that `begin_turn` would compute. What that refuses of a body is refused.

    Arguments and errors are those of `begin_turn`.
    """
    serving.check_model(body.model)
    await _read_params(serving, body, num_bytes)
    _, prompt = await _write_prompt(serving, body, num_bytes)
    return len(prompt)


async def _read_params(
    serving: Serving, body: ChatRequest, num_bytes: int
) -> tuple[SamplingParams, OutputForm | None]:
    """How the answer is to be chosen, and the form that it is to have."""
    form = await off_loop(partial(output_form, body), num_bytes)
    return _params(serving, body, form), form


async def _write_prompt(
    serving: Serving, body: ChatRequest, num_bytes: int
) -> tuple[ToolPlan, list[int]]:
    """What is done with the tools, and the ids of a prompt with those that are offered."""
    plan = plan_tools(body)
    if not plan.tools:
        body.tools = None
    return plan, await serving.encode_chat(body, num_bytes)


def _naming(
    deltas: AsyncGenerator[TextDelta], form: OutputForm | None, plan: ToolPlan
) -> AsyncGenerator[TextDelta]:
    """The same deltas; an error about the grammar names the field or the tool at fault."""
    field = form.param if form is not None else TOOLS_PARAM
    return blaming(naming(deltas, field), plan.tools, field)


def _params(serving: Serving, body: ChatRequest, form: OutputForm | None) -> SamplingParams:
    limits = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None]
    return sampling_params(
        body,
        serving.info.vocab_size,
        max_tokens=min(limits, default=None),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
        form=form,
    )
