"""POST /tokenize and /detokenize: what a text costs, and what ids say."""

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import UNSET

from kokuban.server.body import read_json
from kokuban.server.openai_models import DetokenizeRequest, TokenizeChat, TokenizeText, parse
from kokuban.server.openai_responses import Text, Tokens, encode
from kokuban.server.serving import check_token_ids, serving_of

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Ids of a prompt or of a conversation: the very ids that the other routes would compute."""
    serving = serving_of(request)
    raw = await read_json(request, serving.settings)
    body: TokenizeChat | TokenizeText
    if _has_messages(raw):
        body = parse(TokenizeChat, raw)
        serving.check_model(body.model)
        ids = await serving.encode_chat(body)
    else:
        body = parse(TokenizeText, raw)
        serving.check_model(body.model)
        add_bos = serving.model.tokenizer.add_bos
        if body.add_special_tokens is not None:
            add_bos = body.add_special_tokens
        ids = await serving.encode(body.prompt, add_bos=add_bos)
    tokenizer = serving.model.tokenizer
    words = [tokenizer.token_text(i) for i in ids] if body.return_token_strs else UNSET
    answer = Tokens(len(ids), serving.info.max_context_tokens, list(ids), words)
    return Response(encode(answer), media_type="application/json")


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of ids, special tokens included."""
    serving = serving_of(request)
    body = parse(DetokenizeRequest, await read_json(request, serving.settings))
    serving.check_model(body.model)
    check_token_ids(body.tokens, serving.info.vocab_size, "tokens")
    text = serving.model.tokenizer.decode(body.tokens, skip_special=False)
    return Response(encode(Text(text)), media_type="application/json")


def _has_messages(raw: bytes) -> bool:
    """Whether the body is a conversation. A body that cannot be read is no conversation."""
    try:
        return "messages" in msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
