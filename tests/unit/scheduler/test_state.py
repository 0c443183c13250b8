from tests.fakes import make_request

from kokuban.core.request import FinishReason
from kokuban.core.step import SampledToken
from kokuban.scheduler.state import RequestState


def make_state(max_output_tokens: int = 10, **options: int) -> RequestState:
    request = make_request(num_tokens=4, end_token_ids=[99], **options)
    return RequestState(request, 0, max_output_tokens, None)


def sampled(*token_ids: int) -> tuple[SampledToken, ...]:
    return tuple(SampledToken(token_id) for token_id in token_ids)


def test_a_request_decodes_when_only_its_last_token_is_left() -> None:
    state = make_state()
    seen = [state.decodes]

    state.advance(3)
    seen.append(state.decodes)
    state.advance(1)
    state.accept(sampled(7), 0.0)
    seen.append(state.decodes)
    state.preempt(0.0)
    seen.append(state.decodes)

    assert seen == [False, False, True, False]


def test_tokens_after_the_end_token_are_dropped() -> None:
    state = make_state()

    tokens, finish = state.accept(sampled(1, 99, 3), 0.0)

    assert tokens == sampled(1, 99)
    assert finish is FinishReason.STOP
    assert state.output_token_ids == (1, 99)


def test_tokens_beyond_the_limit_are_dropped() -> None:
    state = make_state(max_output_tokens=2)

    tokens, finish = state.accept(sampled(1, 2, 3), 0.0)

    assert tokens == sampled(1, 2)
    assert finish is FinishReason.LENGTH


def test_several_accepted_tokens_are_all_left_to_compute_but_those_computed() -> None:
    state = make_state()
    state.advance(4)

    state.accept(sampled(1, 2, 3), 0.0)

    assert state.num_uncomputed == 3
    assert not state.decodes


def test_only_tokens_that_were_computed_before_count_as_recomputed() -> None:
    state = make_state()
    state.advance(3)
    state.preempt(0.0)
    state.begin(0.0, num_cached=1)
    state.advance(1)
    state.advance(2)

    assert state.recomputed_tokens == 2


def test_scores_of_a_chunk_that_reaches_back_are_cut() -> None:
    state = make_state()

    first = state.new_scores(0, sampled(10, 11))
    again = state.new_scores(0, sampled(10, 11, 12))
    rest = state.new_scores(2, sampled(12, 13))

    assert (first, again, rest) == (sampled(10, 11), sampled(12), sampled(13))


def test_a_clock_that_goes_back_takes_no_time_away() -> None:
    state = make_state(arrival_s=5)

    state.begin(3.0, 0)
    usage = state.finish(4.0)

    assert (usage.queue_s, usage.prefill_s) == (0.0, 1.0)
