"""Turns prompts into vectors: each is computed like any other prompt, and no token is sampled."""

import secrets
import sys
from array import array
from collections.abc import AsyncGenerator, Sequence

from kokuban.core.errors import RequestError
from kokuban.core.pooling import PoolingParams
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.client import EngineClient, submitted
from kokuban.engine.generation import TextDelta, check_token_ids

_NO_SAMPLING = SamplingParams(temperature=0.0)


async def embed(
    engine: EngineClient,
    prompts: Sequence[Sequence[int]],
    params: PoolingParams,
    *,
    request_id: str | None = None,
    priority: int = 0,
    tenant: str = "",
    cache_scope: str = "",
    deadline_s: float | None = None,
) -> AsyncGenerator[TextDelta]:
    """Compute the vector of each prompt, all in one group: they are queued together or not at all.

    Closing the generator cancels what is left of it in the engine.

    Args:
        prompts: each of at least one id, all inside the vocabulary.
        request_id: unique in the engine; drawn when None. Prompt i runs as `request_id-i`.
        priority, tenant, cache_scope, deadline_s: see `core.Request`.

    Yields:
        One delta for each prompt as they are done: `choice` is the number of the prompt.

    Raises:
        Overloaded, RequestError: the engine refused the requests; none of them runs.
    """
    check_dimensions(params, engine.info.hidden_size)
    for prompt in prompts:
        check_token_ids(prompt, engine.info.vocab_size)
    name = request_id or secrets.token_hex(12)
    requests = [
        Request(
            id=RequestId(f"{name}-{index}"),
            prompt_token_ids=tuple(prompt),
            params=_NO_SAMPLING,
            pooling=params,
            priority=priority,
            tenant=tenant,
            cache_scope=cache_scope,
            deadline_s=deadline_s,
        )
        for index, prompt in enumerate(prompts)
    ]
    numbers = {request.id: index for index, request in enumerate(requests)}
    async with submitted(engine, requests) as events:
        async for event in events:
            yield TextDelta(
                choice=numbers[event.request_id],
                text="",
                finish=event.finish,
                usage=event.usage,
                error=event.error,
                embedding=event.embedding,
            )


def check_dimensions(params: PoolingParams, hidden_size: int) -> None:
    """Raises `RequestError` when more numbers are asked for than the model's vectors have."""
    if params.dimensions is not None and params.dimensions > hidden_size:
        raise RequestError(
            f"dimensions={params.dimensions} is above {hidden_size}, the length of this model's "
            f"vectors; ask for at most that, or leave the field out",
            param="dimensions",
        )


def floats_of(data: bytes) -> list[float]:
    """The numbers of a vector as the engine gives it: float32 in little-endian order."""
    numbers = array("f", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
