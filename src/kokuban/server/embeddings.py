"""POST /v1/embeddings: texts or token ids in, one vector for each.

A vector is the hidden state of the last token, or the mean over all of them, after the final norm;
scaled to length 1 unless the client wants it raw. All inputs are one group of the engine.
"""

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from kokuban.core.errors import RequestError
from kokuban.core.pooling import PoolingParams
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.embedding import check_dimensions, embed
from kokuban.server.answer import Answer
from kokuban.server.body import read_body
from kokuban.server.embedding_form import EmbeddingForm
from kokuban.server.embedding_models import EmbeddingRequest
from kokuban.server.errors import retold
from kokuban.server.openai_models import prompt_rows
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, check_token_ids, serving_of
from kokuban.server.work import off_loop

MAX_INPUTS = 2048
"""Inputs of one HTTP request; OpenAI's limit."""

MAX_INPUT_TOKENS = 300_000
"""Tokens of all inputs of one HTTP request together; OpenAI's limit. A longer context has room for
itself."""

router = Router(KeyScope.INFER)


@router.post("/v1/embeddings", queues=True)
async def embeddings(request: Request) -> Response:
    """One vector for each text or list of token ids."""
    serving = serving_of(request)
    body, num_bytes = await read_body(request, serving.settings, EmbeddingRequest)
    serving.check_model(body.model)
    params = PoolingParams(
        pooling=body.pooling or serving.settings.pooling,
        normalize=body.normalize is not False,
        dimensions=body.dimensions,
    )
    check_dimensions(params, serving.info.hidden_size)
    record = serving.new_record(request, "embeddings", SamplingParams())
    record.pools = True
    record.scores = params.needs_every_row
    prompts = await off_loop(partial(_prompts, serving, body), num_bytes)
    serving.begin(record, prompts, body.cache_salt)
    deltas = retold(
        embed(
            serving.model.client,
            prompts,
            params,
            request_id=record.request_id,
            priority=body.priority or 0,
            tenant=request.state.tenant,
            cache_scope=body.cache_salt or "",
        ),
        _of_input,
    )
    form = EmbeddingForm(serving.info.model, record, base64=body.encoding_format == "base64")
    return Answer(deltas, form, record, serving.drain)


def _of_input(error: RequestError) -> RequestError:
    """What the engine says of a prompt is said of `input`."""
    error.param = "input"
    return error


def _prompts(serving: Serving, body: EmbeddingRequest) -> list[list[int]]:
    """Every input as token ids, all checked before the first one runs."""
    rows = prompt_rows(body.input)
    if len(rows) > MAX_INPUTS:
        raise RequestError(
            f"there are {len(rows)} inputs; the limit of one request is {MAX_INPUTS}: send several "
            f"requests",
            param="input",
        )
    limit = max(MAX_INPUT_TOKENS, serving.info.max_context_tokens)
    prompts: list[list[int]] = []
    num_tokens = 0
    for index, row in enumerate(rows):
        name = "input" if len(rows) == 1 else f"input[{index}]"
        prompts.append(_prompt(serving, body, row, name))
        num_tokens += len(prompts[-1])
        if num_tokens > limit:
            raise RequestError(
                f"the first {index + 1} of {len(rows)} inputs have {num_tokens} tokens together; "
                f"the limit of one request is {limit}: send several requests",
                param="input",
            )
    return prompts


def _prompt(serving: Serving, body: EmbeddingRequest, row: str | list[int], name: str) -> list[int]:
    """One input as token ids, cut if the client allows it."""
    most = serving.info.max_context_tokens
    limit = body.truncate_prompt_tokens
    if limit is not None and limit > most:
        raise RequestError(
            f"truncate_prompt_tokens={limit} is above the {most} tokens that the context holds; "
            f"use at most that, or -1",
            param="truncate_prompt_tokens",
        )
    if not row:
        raise RequestError(f"{name} is empty; send at least one character", param="input")
    if isinstance(row, str):
        add_bos = serving.model.tokenizer.add_bos
        if body.add_special_tokens is not None:
            add_bos = body.add_special_tokens
        ids = serving.encode(row, add_bos=add_bos, param="input")
    else:
        check_token_ids(row, serving.info.vocab_size, "input")
        add_bos, ids = False, row
    if limit is not None:
        ids = _last(ids, most if limit < 0 else limit, keeps_first=add_bos)
    if len(ids) > most:
        raise RequestError(
            f"{name} has {len(ids)} tokens, but the context holds {most}; shorten it, let it be "
            f"cut with truncate_prompt_tokens or, if the model was made for more, start the server "
            f"with a larger --max-context-tokens or --kv-memory",
            param="input",
            code="context_length_exceeded",
        )
    return ids


def _last(ids: list[int], count: int, *, keeps_first: bool) -> list[int]:
    """The last tokens; the token that begins every text stays in front of them."""
    if len(ids) <= count:
        return ids
    if keeps_first and count > 1:
        return [ids[0], *ids[len(ids) - count + 1 :]]
    return ids[len(ids) - count :]
