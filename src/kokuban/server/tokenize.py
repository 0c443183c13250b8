"""POST /tokenize and /detokenize: what a text costs, and what ids say."""

from functools import partial

import msgspec
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from kokuban.server.body import parse_body, read_json
from kokuban.server.openai_models import DetokenizeRequest, TokenizeChat, TokenizeText
from kokuban.server.openai_responses import Text, Tokens, encode
from kokuban.server.raw_json import UNREADABLE
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, check_token_ids, serving_of
from kokuban.server.work import off_loop

router = Router(KeyScope.INFER)


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Ids of a prompt or of a conversation: the very ids that the other routes would compute."""
    serving = serving_of(request)
    raw = await read_json(request, serving.settings)
    body: TokenizeChat | TokenizeText
    if _has_messages(raw):
        body = await parse_body(TokenizeChat, raw)
        serving.check_model(body.model)
        ids = await serving.encode_chat(body, len(raw))
    else:
        body = await parse_body(TokenizeText, raw)
        serving.check_model(body.model)
        add_bos = serving.model.tokenizer.add_bos
        if body.add_special_tokens is not None:
            add_bos = body.add_special_tokens
        encoding = partial(serving.encode, body.prompt, add_bos=add_bos)
        ids = await off_loop(encoding, len(raw))
    answer = partial(_tokens, serving, ids, with_words=bool(body.return_token_strs))
    return Response(await off_loop(answer, len(raw)), media_type="application/json")


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of ids, special tokens included."""
    serving = serving_of(request)
    raw = await read_json(request, serving.settings)
    body = await parse_body(DetokenizeRequest, raw)
    serving.check_model(body.model)
    check_token_ids(body.tokens, serving.info.vocab_size, "tokens")

    def work() -> bytes:
        return encode(Text(serving.model.tokenizer.decode(body.tokens, skip_special=False)))

    return Response(await off_loop(work, len(raw)), media_type="application/json")


def _tokens(serving: Serving, ids: list[int], *, with_words: bool) -> bytes:
    """The answer of /tokenize."""
    tokenizer = serving.model.tokenizer
    words = [tokenizer.token_text(i) for i in ids] if with_words else UNSET
    return encode(Tokens(len(ids), serving.info.max_context_tokens, ids, words))


def _has_messages(raw: bytes) -> bool:
    """Whether the body is a conversation. A body that cannot be read is no conversation."""
    try:
        return "messages" in msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return False
