"""GET /v1/explain/{request_id}: what an answer cost, and why its prompt was not in the cache.

Answers for the caller's own requests only, and compares with the caller's own only: see `history`.
Where everybody is one tenant and other machines can call, the route is closed, since what the
nearest request says is somebody's text.
"""

import re
from array import array
from typing import Literal

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from kokuban.core.errors import RequestError
from kokuban.server.access import check_private
from kokuban.server.errors import HttpError
from kokuban.server.nearest import Nearest, Past, find_nearest
from kokuban.server.openai_responses import UsageBody, encode
from kokuban.server.record import TOKEN_BYTES, Record
from kokuban.server.routes import Router
from kokuban.server.scopes import KeyScope
from kokuban.server.serving import Serving, serving_of
from kokuban.server.verdict import MESSAGES, Lookup, Reason, plain_reason, reason_of_miss
from kokuban.server.work import off_loop
from kokuban.text.tokenizer import Tokenizer

CONTEXT_TOKENS = 8
"""Tokens that are shown before and after a difference."""

INLINE_BYTES = 64 * 2**10
"""More remembered tokens than this are compared in a worker thread."""

_ID = re.compile(r"(?:[a-z]{1,16}[-_])?([0-9a-f]{24})")

router = Router(KeyScope.INFER)


class Side(Struct, frozen=True):
    """What stands at the first difference on one side."""

    token_id: int
    token: str
    text: str
    """From there on, a few tokens."""


class Difference(Struct, frozen=True):
    """Where two texts part."""

    index: int
    """Of the first token that differs, from 0."""

    before: str
    """The text that both have before it, a few tokens."""

    here: Side
    there: Side | None
    """Null when the nearest text ends there, or when it is of another scope."""


class NearestBody(Struct, frozen=True):
    """The remembered request that begins most like this one."""

    request_id: str
    prompt: int
    """Which of its prompts."""

    choice: int | None
    """Which of its outputs the common part goes into; null: none."""

    same_scope: bool
    """Whether it had the same cache_salt; if not, nothing of its text is shown."""

    common_tokens: int
    difference: Difference | None
    """Null when it begins with the whole prompt."""


class PromptBody(Struct, frozen=True):
    """What the cache did for one prompt."""

    index: int
    prompt_tokens: int
    cached_tokens: int | None
    """Null before the first token."""

    reason: Reason | None
    message: str
    nearest: NearestBody | None
    """For a miss."""


class Explanation(Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["kokuban.explanation"] = "kokuban.explanation"
    api: str
    created: int
    status: str
    """"running", or how it ended: "stop", "length", "abort" or "error"."""

    usage: UsageBody
    ttft_ms: float | None
    tpot_ms: float | None
    e2e_ms: float
    """Until now while it runs."""

    num_prompts: int
    prompt: PromptBody


@router.get("/v1/explain/{request_id}")
async def explain(request: Request, request_id: str) -> Response:
    """Why a request cost what it did. `request_id` is the id of its answer; ?prompt=N: which
    prompt of several."""
    serving = serving_of(request)
    check_private(serving.settings, request.state.caller)
    found = _ID.fullmatch(request_id)
    record = serving.history.find(request.state.tenant, found[1]) if found else None
    if record is None:
        raise HttpError(
            404,
            "no such request of yours is remembered; send the id of an answer, soon after it",
            code="request_not_found",
        )
    num_prompts = len(record.prompts)
    prompt = await _explain_prompt(serving, record, _prompt_index(request, num_prompts))
    answer = _explanation(record, num_prompts, prompt)
    return Response(encode(answer), media_type="application/json")


def _prompt_index(request: Request, num_prompts: int) -> int:
    asked = request.query_params.get("prompt", "0")
    if asked.isascii() and asked.isdecimal() and len(asked) < 10 and int(asked) < num_prompts:
        return int(asked)
    raise RequestError(
        f"prompt={asked[:32]!r} is none of this request's {num_prompts} prompts, 0 to "
        f"{num_prompts - 1}",
        param="prompt",
    )


def _explanation(record: Record, num_prompts: int, prompt: PromptBody) -> Explanation:
    ended_s = record.clock.now() if record.ended_s is None else record.ended_s
    return Explanation(
        id=record.request_id,
        api=record.api,
        created=record.created,
        status=record.finish or "running",
        usage=record.usage_body(),
        ttft_ms=_ms(record.ttft_s),
        tpot_ms=_ms(record.tpot_s),
        e2e_ms=round((ended_s - record.started_s) * 1e3, 3),
        num_prompts=num_prompts,
        prompt=prompt,
    )


async def _explain_prompt(serving: Serving, record: Record, index: int) -> PromptBody:
    ids = record.prompts[index]
    usage = record.usages.get(index * record.n)
    if usage is None or record.submitted_s is None:
        text = "the engine has told nothing of this prompt" + ("" if record.finish else " yet")
        return PromptBody(index, len(ids) // TOKEN_BYTES, None, None, text, None)
    lookup = Lookup(
        num_prompt=len(ids) // TOKEN_BYTES,
        num_found=usage.cached_tokens,
        admitted_s=record.submitted_s + usage.queue_s,
        block_size=serving.info.block_size,
        is_cache_on=serving.info.prefix_cache,
        scores=record.scores,
    )
    nearest = None
    reason = plain_reason(lookup)
    if reason is None:
        reason, nearest = await _explain_miss(serving, record, ids, lookup)
    return PromptBody(index, lookup.num_prompt, lookup.num_found, reason, MESSAGES[reason], nearest)


async def _explain_miss(
    serving: Serving, record: Record, ids: bytes, lookup: Lookup
) -> tuple[Reason, NearestBody | None]:
    pasts = _pasts(serving, record, lookup.admitted_s)
    resets, tokenizer = serving.history.resets, serving.model.tokenizer

    def work() -> tuple[Reason, NearestBody | None]:
        here = [past for past in pasts if past.scope == record.scope]
        there = [past for past in pasts if past.scope != record.scope]
        own = find_nearest(ids, here, lookup.admitted_s)
        elsewhere = find_nearest(ids, there, lookup.admitted_s)
        reason = reason_of_miss(lookup, own, elsewhere, resets)
        is_own = reason != "other_scope"
        shown = own if is_own else elsewhere
        if shown is None:
            return reason, None
        return reason, _nearest_body(tokenizer, ids, shown, same_scope=is_own)

    num_bytes = serving.history.num_tokens(record.tenant) * TOKEN_BYTES
    return await off_loop(work, num_bytes, INLINE_BYTES)


def _pasts(serving: Serving, record: Record, admitted_s: float) -> list[Past]:
    """The tenant's other requests that had begun by then, latest first."""
    pasts = []
    for other in serving.history.of(record.tenant):
        if other is record or other.submitted_s is None or other.submitted_s > admitted_s:
            continue
        if (past := Past.of(other)) is not None:
            pasts.append(past)
    return pasts


def _nearest_body(
    tokenizer: Tokenizer, prompt: bytes, nearest: Nearest, *, same_scope: bool
) -> NearestBody:
    num_common = nearest.num_common
    difference = None
    if num_common < len(prompt) // TOKEN_BYTES:
        before = _ids(prompt, max(0, num_common - CONTEXT_TOKENS), num_common)
        there = _ids(nearest.next_tokens, 0, CONTEXT_TOKENS) if same_scope else []
        difference = Difference(
            num_common,
            tokenizer.decode(before, skip_special=False),
            _side(tokenizer, _ids(prompt, num_common, num_common + CONTEXT_TOKENS)),
            _side(tokenizer, there) if there else None,
        )
    return NearestBody(
        nearest.past.request_id,
        nearest.prompt,
        nearest.choice,
        same_scope,
        num_common,
        difference,
    )


def _side(tokenizer: Tokenizer, ids: list[int]) -> Side:
    return Side(ids[0], tokenizer.token_text(ids[0]), tokenizer.decode(ids, skip_special=False))


def _ids(tokens: bytes, start: int, end: int) -> list[int]:
    """Tokens `start` to `end`, as far as there are so many."""
    ids = array("i")
    ids.frombytes(tokens[start * TOKEN_BYTES : end * TOKEN_BYTES])
    return ids.tolist()


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)
