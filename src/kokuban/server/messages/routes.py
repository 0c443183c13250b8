"""POST /v1/messages and /v1/messages/count_tokens."""

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response

from kokuban.core.errors import RequestError
from kokuban.server.answer import respond
from kokuban.server.body import read_body
from kokuban.server.messages.answers import PING, TokenCount
from kokuban.server.messages.convert import to_chat
from kokuban.server.messages.form import MessagesForm
from kokuban.server.messages.models import Conversation, CountRequest, MessagesRequest
from kokuban.server.openai_models import ChatRequest
from kokuban.server.openai_responses import encode
from kokuban.server.pins import asks_to_keep
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, serving_of
from kokuban.server.turn import begin_turn, count_prompt
from kokuban.server.work import INLINE_JSON_BYTES, off_loop

router = Router(KeyScope.INFER)

_THEIR_NAMES = {
    "stop": "stop_sequences",
    "user": "metadata.user_id",
    "response_format": "output_config.format",
    "response_format.json_schema.schema": "output_config.format.schema",
}
_THEIR_SCHEMA = "input_schema"
_OUR_SCHEMA = "function.parameters"


@router.post("/v1/messages", queues=True)
async def messages(request: Request) -> Response:
    """Continue a conversation, in Anthropic's form."""
    serving = serving_of(request)
    body, num_bytes = await read_body(request, serving.settings, MessagesRequest)
    with _in_their_words():
        chat = await _chat(serving, body, num_bytes)
        turn = await begin_turn(serving, request, chat, num_bytes, api="messages")
    form = MessagesForm(serving, turn.record, turn.params, keeps=asks_to_keep(chat))
    return respond(
        serving, turn.deltas, form, turn.record, stream=bool(chat.stream), keep_alive=PING
    )


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    """How many tokens the prompt of such a conversation has. Nothing is computed; what /v1/messages
    would refuse is refused."""
    serving = serving_of(request)
    body, num_bytes = await read_body(request, serving.settings, CountRequest)
    with _in_their_words():
        chat = await _chat(serving, body, num_bytes)
        num_tokens = await count_prompt(serving, chat, num_bytes)
    return Response(encode(TokenCount(num_tokens)), media_type="application/json")


@contextmanager
def _in_their_words() -> Iterator[None]:
    """An error in a field that is called otherwise in OpenAI's form, with the client's name."""
    try:
        yield
    except RequestError as error:
        ours = error.param or ""
        theirs = _THEIR_NAMES.get(ours, ours.replace(_OUR_SCHEMA, _THEIR_SCHEMA))
        if theirs == ours:
            raise
        text = str(error).replace(ours, theirs, 1)
        raise RequestError(text, param=theirs, code=error.code) from None


async def _chat(serving: Serving, body: Conversation, num_bytes: int) -> ChatRequest:
    def work() -> ChatRequest:
        has_system = any(message.role == "system" for message in body.messages)
        return to_chat(
            body,
            keep_billing_line=serving.settings.keep_billing_line,
            late_system=has_system and serving.model.chat_template.takes_late_system,
        )

    return await off_loop(work, num_bytes, INLINE_JSON_BYTES)
