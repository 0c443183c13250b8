"""POST /v1/chat/completions."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import SampledToken
from kokuban.engine.generation import TextDelta, generate
from kokuban.server.answer import respond
from kokuban.server.body import parse_body, read_json
from kokuban.server.form import LOWEST_LOGPROB, FormBase, finish_word
from kokuban.server.openai_models import ChatRequest
from kokuban.server.openai_responses import (
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    Delta,
    LogprobItem,
    TopLogprob,
    encode,
    event,
)
from kokuban.server.pins import chat_pins
from kokuban.server.record import Record
from kokuban.server.routes import Router
from kokuban.server.serving import (
    Serving,
    check_stream_options,
    sampling_params,
    serving_of,
)
from kokuban.server.sessions import session_of
from kokuban.server.tool_pause import pausing
from kokuban.text.tokenizer import Tokenizer

router = Router()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Continue a conversation."""
    serving = serving_of(request)
    raw = await read_json(request, serving.settings)
    body = await parse_body(ChatRequest, raw)
    serving.check_model(body.model)
    check_stream_options(body)
    params = _params(serving, body)
    session = session_of(request, body.prompt_cache_key)
    record = serving.new_record(request, "chat", params)
    if body.tool_choice == "none":
        body.tools = None
    prompt = await serving.encode_chat(body, len(raw))
    pins = await chat_pins(serving, body, prompt, len(raw))
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
    )
    if session and body.tools:
        deltas = pausing(
            deltas,
            serving.model.client,
            n=params.n,
            tenant=request.state.tenant,
            session=session,
            offered={tool.function.name for tool in body.tools},
        )
    form = ChatForm(serving, body, record)
    return respond(serving, deltas, form, record, stream=bool(body.stream))


def _params(serving: Serving, body: ChatRequest) -> SamplingParams:
    limits = [limit for limit in (body.max_tokens, body.max_completion_tokens) if limit is not None]
    return sampling_params(
        body,
        serving.info.vocab_size,
        max_tokens=min(limits, default=None),
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )


class ChatForm(FormBase):
    """The chat's shape of an answer; see `answer.Form`."""

    def __init__(self, serving: Serving, body: ChatRequest, record: Record) -> None:
        super().__init__(serving, body.stream_options, record, f"chatcmpl-{record.request_id}")
        self._num_top = (body.top_logprobs or 0) if body.logprobs else None
        self._deltas: list[list[TextDelta]] = [[] for _ in range(record.n)]

    def add(self, delta: TextDelta) -> None:
        self._deltas[delta.choice].append(delta)

    def body(self) -> bytes:
        completion = ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=[self._choice(index, deltas) for index, deltas in enumerate(self._deltas)],
            usage=self.record.usage_body(),
        )
        return encode(completion)

    def _choice(self, index: int, deltas: Sequence[TextDelta]) -> ChatChoice:
        tokens = [token for delta in deltas for token in delta.tokens]
        message = ChatMessage("".join(delta.text for delta in deltas))
        last = deltas[-1]
        return ChatChoice(
            index, message, self._logprobs(tokens), finish_word(last.finish), last.stop_reason
        )

    def opening(self) -> bytes:
        role = Delta(role="assistant", content="")
        return b"".join(self._chunk([ChunkChoice(index, role)]) for index in range(self.record.n))

    def events(self, delta: TextDelta) -> bytes:
        data = b""
        if delta.text or (delta.tokens and (self._num_top is not None or self.usage_always)):
            logprobs = self._logprobs(delta.tokens)
            data += self._chunk([ChunkChoice(delta.choice, Delta(content=delta.text), logprobs)])
        if delta.finish is not None:
            finish = ChunkChoice(
                delta.choice,
                Delta(),
                finish_reason=finish_word(delta.finish),
                stop_reason=delta.stop_reason,
            )
            data += self._chunk([finish])
        return data

    def closing(self) -> bytes:
        return self._chunk([], is_last=True) if self.usage_at_end else b""

    def _chunk(self, choices: list[ChunkChoice], *, is_last: bool = False) -> bytes:
        chunk = ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=self.usage_field(is_last=is_last),
        )
        return event(chunk)

    def _logprobs(self, tokens: Sequence[SampledToken]) -> ChatLogprobs | None:
        if self._num_top is None:
            return None
        return ChatLogprobs([logprob_item(self.tokenizer, t, self._num_top) for t in tokens])


def logprob_item(tokenizer: Tokenizer, token: SampledToken, num_top: int) -> LogprobItem:
    """One token with its bytes and the `num_top` most likely tokens of its place."""
    return LogprobItem(
        tokenizer.token_text(token.token_id),
        max(token.logprob, LOWEST_LOGPROB),
        list(tokenizer.token_bytes(token.token_id)),
        [
            TopLogprob(
                tokenizer.token_text(top.token_id),
                max(top.logprob, LOWEST_LOGPROB),
                list(tokenizer.token_bytes(top.token_id)),
            )
            for top in token.top[:num_top]
        ],
    )
