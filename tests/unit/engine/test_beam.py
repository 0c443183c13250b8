"""When a beam search may stop, and what it does with failures; a scripted engine stands in."""

from collections.abc import AsyncIterator, Sequence

import pytest
from tests.server.fakes import FakeEngine

from kokuban.core.errors import PromptTooLong, StepFailed
from kokuban.core.request import FinishReason, Request
from kokuban.core.step import SampledToken, TokenEvent, TokenLogprob
from kokuban.engine.beam import Beam, beam_search

END, A, B, OTHER = 1, 2, 3, 4


class Scripted(FakeEngine):
    """After the prompt the end is a little likelier than A; afterwards B is nearly certain."""

    async def submit(self, requests: Sequence[Request]) -> AsyncIterator[TokenEvent]:
        self.submitted += requests
        for request in requests:
            if request.prompt_token_ids[-1] == OTHER:
                yield TokenEvent(request.id, (), finish=FinishReason.ERROR, error="no number")
                continue
            first = request.prompt_token_ids[-1] not in (A, B)
            top = (
                (TokenLogprob(END, -1.0), TokenLogprob(A, -1.1))
                if first
                else (TokenLogprob(B, -0.1), TokenLogprob(OTHER, -9.0))
            )
            token = SampledToken(top[0].token_id, top[0].logprob, top)
            yield TokenEvent(request.id, (token,), finish=FinishReason.LENGTH)


async def search(engine: FakeEngine, length_penalty: float, max_tokens: int = 10) -> list[Beam]:
    return await beam_search(
        engine,
        [0],
        beam_width=1,
        max_tokens=max_tokens,
        length_penalty=length_penalty,
        end_token_ids=[END],
    )


async def test_it_goes_on_while_a_longer_sequence_may_have_the_better_mean() -> None:
    [beam] = await search(Scripted(), 1.0)

    assert beam.token_ids == (A, *[B] * 9)
    assert beam.score(1.0) == pytest.approx(-(1.1 + 0.9) / 10)
    assert beam.finish is FinishReason.LENGTH


async def test_it_stops_as_soon_as_nothing_better_can_come() -> None:
    engine = Scripted()

    [beam] = await search(engine, 0.0)

    assert beam == Beam((END,), -1.0, FinishReason.STOP)
    assert len(engine.submitted) == 1


async def test_the_context_is_a_limit_like_max_tokens() -> None:
    [beam] = await search(Scripted(max_context_tokens=5), 1.0)

    assert beam.token_ids == (A, B, B, B)
    with pytest.raises(PromptTooLong):
        await search(Scripted(max_context_tokens=1), 1.0)


async def test_a_beam_that_fails_ends_the_search() -> None:
    with pytest.raises(StepFailed, match="no number"):
        await beam_search(Scripted(), [OTHER], beam_width=1, max_tokens=3)
