"""POST /tokenize, /detokenize and /apply-template: what a text costs, what ids and messages say."""

from collections.abc import Sequence
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from kokuban.server.body import parse_body, read_json
from kokuban.server.openai_models import (
    DetokenizeRequest,
    TemplateRequest,
    TokenizeChat,
    TokenizeContent,
    TokenizeText,
)
from kokuban.server.openai_responses import Piece, RenderedPrompt, Text, Tokens, encode
from kokuban.server.raw_json import UNREADABLE
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, check_token_ids, serving_of
from kokuban.server.work import off_loop
from kokuban.text.tokenizer import Tokenizer

router = Router(KeyScope.INFER)


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Ids of a prompt or of a conversation: the very ids that the other routes would compute."""
    serving = serving_of(request)
    raw = await read_json(request, serving.settings)
    names = _names(raw)
    if "messages" in names:
        answer = await _of_messages(serving, raw)
    elif "content" in names and "prompt" not in names:
        answer = await _of_content(serving, raw)
    else:
        answer = await _of_text(serving, raw)
    return Response(answer, media_type="application/json")


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """The text of ids, special tokens included."""
    serving = serving_of(request)
    raw = await read_json(request, serving.settings)
    body = await parse_body(DetokenizeRequest, raw)
    serving.check_model(body.model)
    check_token_ids(body.tokens, serving.info.vocab_size, "tokens")

    def work() -> bytes:
        text = serving.model.tokenizer.decode(body.tokens, skip_special=False)
        return encode(Text(prompt=text, content=text))

    return Response(await off_loop(work, len(raw)), media_type="application/json")


@router.post("/apply-template")
async def apply_template(request: Request) -> Response:
    """The text that the model's template makes of a conversation. Nothing is computed."""
    serving = serving_of(request)
    raw = await read_json(request, serving.settings)
    body = await parse_body(TemplateRequest, raw)
    serving.check_model(body.model)
    text = await serving.render_chat(body, len(raw))
    return Response(encode(RenderedPrompt(text)), media_type="application/json")


async def _of_messages(serving: Serving, raw: bytes) -> bytes:
    body = await parse_body(TokenizeChat, raw)
    serving.check_model(body.model)
    ids = await serving.encode_chat(body, len(raw))
    return await _tokens(serving, ids, len(raw), with_words=bool(body.return_token_strs))


async def _of_text(serving: Serving, raw: bytes) -> bytes:
    body = await parse_body(TokenizeText, raw)
    serving.check_model(body.model)
    add_bos = serving.model.tokenizer.add_bos
    if body.add_special_tokens is not None:
        add_bos = body.add_special_tokens
    ids = await off_loop(partial(serving.encode, body.prompt, add_bos=add_bos), len(raw))
    return await _tokens(serving, ids, len(raw), with_words=bool(body.return_token_strs))


async def _of_content(serving: Serving, raw: bytes) -> bytes:
    """As llama.cpp has it: without BOS unless it is asked for."""
    body = await parse_body(TokenizeContent, raw)
    serving.check_model(body.model)
    encoding = partial(
        serving.encode,
        body.content,
        add_bos=bool(body.add_special),
        param="content",
        parse_special=body.parse_special is not False,
    )
    ids = await off_loop(encoding, len(raw))
    return await _tokens(serving, ids, len(raw), with_pieces=bool(body.with_pieces))


async def _tokens(
    serving: Serving,
    ids: list[int],
    num_bytes: int,
    *,
    with_words: bool = False,
    with_pieces: bool = False,
) -> bytes:
    """The answer of /tokenize.

    Args:
        num_bytes: length of the body as it was sent.
        with_words: the tokens' texts in a list of their own.
        with_pieces: each token with its text, or its bytes where they are none.
    """
    tokenizer = serving.model.tokenizer

    def work() -> bytes:
        words = [tokenizer.token_text(i) for i in ids] if with_words else None
        shown = _pieces(tokenizer, ids) if with_pieces else ids
        return encode(Tokens(len(ids), serving.info.max_context_tokens, shown, words))

    return await off_loop(work, num_bytes)


def _pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[Piece]:
    pieces: list[Piece] = []
    for token_id in ids:
        data = tokenizer.token_bytes(token_id)
        try:
            pieces.append(Piece(token_id, data.decode()))
        except UnicodeDecodeError:
            pieces.append(Piece(token_id, list(data)))
    return pieces


def _names(raw: bytes) -> frozenset[str]:
    """The names of a body's fields; none of a body that cannot be read."""
    try:
        return frozenset(msgspec.json.decode(raw, type=dict[str, msgspec.Raw]))
    except UNREADABLE:
        return frozenset()
