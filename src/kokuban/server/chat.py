"""POST /v1/chat/completions."""

import secrets
from collections.abc import Sequence

from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from kokuban.core.request import FinishReason
from kokuban.core.step import SampledToken
from kokuban.engine.generation import TextDelta
from kokuban.server.answer import respond
from kokuban.server.body import read_body
from kokuban.server.form import LOWEST_LOGPROB, FormBase, finish_word
from kokuban.server.openai_models import ChatRequest
from kokuban.server.openai_responses import (
    DONE,
    CalledFunction,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatFinish,
    ChatLogprobs,
    ChatMessage,
    ChunkChoice,
    Delta,
    FunctionDelta,
    LogprobItem,
    ToolCallBody,
    ToolCallDelta,
    TopLogprob,
    encode,
    event,
)
from kokuban.server.record import Record
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, check_stream_options, serving_of
from kokuban.server.turn import begin_turn
from kokuban.text.parts import CallPart, Part, ReasoningPart, TextPart, whole_calls
from kokuban.text.tokenizer import Tokenizer

router = Router(KeyScope.INFER)


@router.post("/v1/chat/completions", queues=True)
async def chat_completions(request: Request) -> Response:
    """Continue a conversation."""
    serving = serving_of(request)
    body, num_bytes = await read_body(request, serving.settings, ChatRequest)
    check_stream_options(body)
    turn = await begin_turn(serving, request, body, num_bytes, api="chat")
    form = ChatForm(serving, body, turn.record, turn.prompt)
    return respond(serving, turn.deltas, form, turn.record, stream=bool(body.stream))


class ChatForm(FormBase):
    """The chat's shape of an answer; see `answer.Form`."""

    def __init__(
        self, serving: Serving, body: ChatRequest, record: Record, prompt: Sequence[int]
    ) -> None:
        super().__init__(serving, body.stream_options, record, f"chatcmpl-{record.request_id}")
        self._num_top = (body.top_logprobs or 0) if body.logprobs else None
        self._prompt = list(prompt) if body.return_token_ids else UNSET
        self._hides_thoughts = body.include_reasoning is False
        asked = (body.model_extra or {}).get("service_tier")
        self._tier = UNSET if asked is None else "default"
        self._deltas: list[list[TextDelta]] = [[] for _ in range(record.n)]
        self._calling: set[int] = set()
        """Choices of a stream that have begun a call."""

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
            service_tier=self._tier,
            prompt_token_ids=self._prompt,
        )
        return encode(completion)

    def _choice(self, index: int, deltas: Sequence[TextDelta]) -> ChatChoice:
        tokens = [token for delta in deltas for token in delta.tokens]
        message = message_of([part for delta in deltas for part in self._shown(delta)])
        last = deltas[-1]
        finish = _finish_word(last.finish, calls=message.tool_calls is not UNSET)
        return ChatChoice(
            index,
            message,
            self._logprobs(tokens),
            finish,
            last.stop_reason,
            self._token_ids(tokens),
        )

    def opening(self) -> bytes:
        role = Delta(role="assistant", content="")
        firsts = (
            ChunkChoice(index, role, prompt_token_ids=self._prompt)
            for index in range(self.record.n)
        )
        return b"".join(self._chunk([first]) for first in firsts)

    def events(self, delta: TextDelta) -> bytes:
        pieces = [_delta_of(part) for part in self._shown(delta)]
        if any(isinstance(part, CallPart) for part in delta.parts):
            self._calling.add(delta.choice)
        if not pieces and delta.tokens and self._tells_tokens:
            pieces = [Delta(content="")]
        tokens = delta.tokens
        data = b""
        for piece in pieces:
            chunk = ChunkChoice(
                delta.choice, piece, self._logprobs(tokens), token_ids=self._token_ids(tokens)
            )
            data += self._chunk([chunk])
            tokens = ()  # They are told once, whatever they have become.
        if delta.finish is not None:
            finish = ChunkChoice(
                delta.choice,
                Delta(),
                finish_reason=_finish_word(delta.finish, calls=delta.choice in self._calling),
                stop_reason=delta.stop_reason,
            )
            data += self._chunk([finish])
        return data

    def closing(self) -> bytes:
        return (self._chunk([], is_last=True) if self.usage_at_end else b"") + DONE

    def _chunk(self, choices: list[ChunkChoice], *, is_last: bool = False) -> bytes:
        chunk = ChatChunk(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=self.usage_field(is_last=is_last),
            service_tier=self._tier,
        )
        return event(chunk)

    def _shown(self, delta: TextDelta) -> Sequence[Part]:
        """The parts that the client wants to see."""
        if not self._hides_thoughts:
            return delta.parts
        return [part for part in delta.parts if not isinstance(part, ReasoningPart)]

    @property
    def _tells_tokens(self) -> bool:
        """Whether an event says something although no text has come of it."""
        return self._num_top is not None or self.usage_always or self._prompt is not UNSET

    def _token_ids(self, tokens: Sequence[SampledToken]) -> list[int] | UnsetType:
        if self._prompt is UNSET:
            return UNSET
        return [token.token_id for token in tokens]

    def _logprobs(self, tokens: Sequence[SampledToken]) -> ChatLogprobs | None:
        if self._num_top is None or not tokens:
            return None
        return ChatLogprobs([logprob_item(self.tokenizer, t, self._num_top) for t in tokens])


def message_of(parts: Sequence[Part]) -> ChatMessage:
    """The parts of a choice as the message of an assistant."""
    content = "".join(part.text for part in parts if isinstance(part, TextPart))
    thoughts = "".join(part.text for part in parts if isinstance(part, ReasoningPart))
    calls = [
        ToolCallBody(new_call_id(), CalledFunction(call.name, call.arguments))
        for call in whole_calls(parts)
    ]
    return ChatMessage(
        content=None if calls and not content else content,
        reasoning_content=thoughts or UNSET,
        tool_calls=calls or UNSET,
    )


def new_call_id() -> str:
    """An id that no other call has, in any choice of any answer."""
    return f"call_{secrets.token_hex(12)}"


def _delta_of(part: Part) -> Delta:
    if isinstance(part, TextPart):
        return Delta(content=part.text)
    if isinstance(part, ReasoningPart):
        return Delta(reasoning_content=part.text)
    if part.name is None:
        call = ToolCallDelta(part.number, FunctionDelta(arguments=part.arguments))
    else:
        function = FunctionDelta(name=part.name, arguments=part.arguments)
        call = ToolCallDelta(part.number, function, new_call_id(), "function")
    return Delta(tool_calls=[call])


def _finish_word(finish: FinishReason | None, *, calls: bool) -> ChatFinish:
    """An answer that was cut off is cut off, also inside a call."""
    word = finish_word(finish)
    return "tool_calls" if calls and word == "stop" else word


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
