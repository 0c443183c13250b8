"""The drafting model's books: what it computes, catches up, forgets and holds."""

from collections.abc import Sequence

from tests.fakes import continuation, next_token

from kokuban.core.request import RequestId
from kokuban.core.speculation import Wanted
from kokuban.core.step import ChunkOutput, SampledToken, StepPlan, StepResult
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.runner.drafter import CATCH_UP_TOKENS, DraftModel

A, B = RequestId("a"), RequestId("b")


class FakeExecutor:
    """A fake model that notes the sizes of the chunks that it is asked for."""

    depth = 0

    def __init__(self) -> None:
        self.tokens: dict[RequestId, list[int]] = {}
        self.steps: list[dict[str, int]] = []
        self.failing = False
        self.closed = False
        self._result = StepResult(0, {})

    def submit(self, plan: StepPlan) -> None:
        for request_id in plan.ended:
            del self.tokens[request_id]
        for admission in plan.admitted:
            assert admission.request.id not in self.tokens, "a row that is there already"
            self.tokens[admission.request.id] = []
        self.steps.append({chunk.request_id: len(chunk.token_ids) for chunk in plan.chunks})
        outputs = {}
        for chunk in plan.chunks:
            tokens = self.tokens[chunk.request_id]
            assert chunk.start <= len(tokens), "a gap"
            tokens[chunk.start :] = chunk.token_ids
            if self.failing:
                outputs[chunk.request_id] = ChunkOutput(error="not finite")
            elif chunk.samples:
                outputs[chunk.request_id] = ChunkOutput((SampledToken(next_token(tokens)),))
        self._result = StepResult(plan.step, outputs)

    def collect(self) -> StepResult:
        return self._result

    def close(self) -> None:
        self.closed = True


def make(num_blocks: int = 100, max_context: int = 10_000) -> tuple[DraftModel, FakeExecutor]:
    executor = FakeExecutor()
    manager = Manager(BlockPool(num_blocks), block_size=16)
    model = DraftModel(executor, manager, max_context_tokens=max_context, decode_s=lambda *_: 0.5)
    return model, executor


def propose(model: DraftModel, *wanted: tuple[RequestId, Sequence[int], int]) -> list[list[int]]:
    found = model.propose([Wanted(*each) for each in wanted])
    model.check()
    return [list(each) for each in found]


def test_guesses_are_what_the_model_says() -> None:
    model, executor = make()
    prompt = [*range(20)]

    assert propose(model, (A, prompt, 3)) == [continuation(prompt, 3)]
    assert executor.steps == [{"a": 20}, {"a": 1}, {"a": 1}]


def test_right_guesses_are_not_computed_again() -> None:
    model, executor = make()
    sequence = [*range(20)]
    sequence += propose(model, (A, sequence, 3))[0]
    sequence.append(next_token(sequence))
    executor.steps.clear()

    assert propose(model, (A, sequence, 2)) == [continuation(sequence, 2)]
    # Of the three guesses two were computed; the third and the token after it are new.
    assert executor.steps == [{"a": 2}, {"a": 1}]


def test_wrong_guesses_are_overwritten() -> None:
    model, executor = make()
    sequence = [*range(20)]
    guesses = propose(model, (A, sequence, 4))[0]
    sequence += [guesses[0], guesses[1] + 1]
    executor.steps.clear()

    assert propose(model, (A, sequence, 2)) == [continuation(sequence, 2)]
    assert executor.steps == [{"a": 1}, {"a": 1}]


def test_what_came_while_nobody_asked_is_computed_behind_the_last_right_guess() -> None:
    model, executor = make()
    sequence = [*range(20)]
    guesses = propose(model, (A, sequence, 4))[0]
    sequence += [guesses[0], guesses[1] + 1, 5, 6]
    executor.steps.clear()

    assert propose(model, (A, sequence, 2)) == [continuation(sequence, 2)]
    assert executor.steps == [{"a": 3}, {"a": 1}]


def test_requests_are_guessed_for_together_as_far_as_each_wants() -> None:
    model, executor = make()
    first, second = [*range(20)], [*range(50, 55)]

    found = propose(model, (A, first, 1), (B, second, 3))

    assert found == [continuation(first, 1), continuation(second, 3)]
    assert executor.steps == [{"a": 20, "b": 5}, {"b": 1}, {"b": 1}]


def test_a_long_prompt_is_caught_up_in_pieces() -> None:
    model, executor = make()
    prompt = [*range(2 * CATCH_UP_TOKENS + 10)]

    found = [propose(model, (A, prompt, 2))[0] for _ in range(3)]

    assert found == [[], [], continuation(prompt, 2)]
    assert executor.steps == [{"a": CATCH_UP_TOKENS}] * 2 + [{"a": 10}, {"a": 1}]


def test_the_offer_tells_what_is_to_be_caught_up() -> None:
    model, _ = make()
    sequence = [*range(20)]
    assert model.offer(A, sequence, 4).backlog == 19

    sequence += propose(model, (A, sequence, 4))[0]

    assert model.offer(A, [*sequence, 1], 4).backlog == 1


def test_nothing_is_offered_beyond_the_models_own_context() -> None:
    model, _ = make(max_context=22)

    assert model.offer(A, [*range(20)], 4).num_tokens == 2
    assert model.offer(A, [*range(22)], 4).num_tokens == 0


def test_a_request_that_ends_gives_its_blocks_and_its_row_back() -> None:
    model, executor = make(num_blocks=4)
    propose(model, (A, [*range(20)], 3))

    model.forget(A)
    model.forget(RequestId("never heard of"))
    propose(model, (B, [*range(60)], 3))

    assert set(executor.tokens) == {B}


def test_idle_requests_make_room_and_are_caught_up_when_they_come_back() -> None:
    model, executor = make(num_blocks=3)
    first, second = [*range(20)], [*range(100, 130)]
    propose(model, (A, first, 3))

    assert propose(model, (B, second, 3)) == [continuation(second, 3)]
    executor.steps.clear()
    assert propose(model, (A, first, 2)) == [continuation(first, 2)]
    assert executor.steps == [{"a": 20}, {"a": 1}]


def test_who_does_not_fit_beside_the_others_gets_nothing() -> None:
    model, _ = make(num_blocks=3)
    first, second = [*range(20)], [*range(100, 130)]

    assert propose(model, (A, first, 3), (B, second, 3)) == [continuation(first, 3), []]


def test_a_model_that_fails_is_not_asked_again_for_that_request() -> None:
    model, executor = make()
    executor.failing = True

    assert propose(model, (A, [*range(20)], 3)) == [[]]

    assert model.offer(A, [*range(21)], 3).num_tokens == 0
    assert model.offer(B, [*range(21)], 3).num_tokens == 3


def test_closing_closes_the_executor_and_the_price_is_the_models() -> None:
    model, executor = make()
    model.close()

    assert executor.closed
    assert model.round_s(3, 100) == 0.5
