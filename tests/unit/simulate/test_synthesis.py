"""Tokens made from names: equal where the names are, and nowhere else."""

from kokuban.simulate.synthesis import Synthesizer
from kokuban.simulate.trace import TraceRequest, make_trace


def turn(
    ids: tuple[int, ...], tokens: int, *, output: int = 1, session: str = "", scope: str = ""
) -> TraceRequest:
    return TraceRequest(
        arrival_s=0.0,
        prompt_tokens=tokens,
        output_tokens=output,
        block_ids=ids,
        session=session,
        scope=scope,
    )


def test_equal_names_are_equal_tokens_and_different_ones_share_none() -> None:
    made = Synthesizer(make_trace("t", 4, [turn((7, 8), 8), turn((7, 9), 8)]))

    first, second = made.prompt(0), made.prompt(1)

    assert first[:4] == second[:4]
    assert len(set(first) | set(second)) == 12


def test_the_last_block_of_a_prompt_may_be_a_part_of_one() -> None:
    made = Synthesizer(make_trace("t", 4, [turn((7, 8), 8), turn((7, 8), 6)]))

    assert made.prompt(1) == made.prompt(0)[:6]


def test_one_name_in_two_scopes_is_two_contents() -> None:
    made = Synthesizer(make_trace("t", 4, [turn((7,), 4, scope="a"), turn((7,), 4, scope="b")]))

    assert set(made.prompt(0)).isdisjoint(made.prompt(1))


def test_what_has_no_name_belongs_to_one_request() -> None:
    made = Synthesizer(make_trace("t", 4, [turn((), 5, output=2), turn((), 5, output=2)]))

    said = [made.output_token(index, place) for index in (0, 1) for place in (0, 1)]

    assert len({*made.prompt(0), *made.prompt(1), *said}) == 14


def test_the_next_turn_repeats_prompt_and_answer_of_the_one_before() -> None:
    """Six tokens and an answer of four; the next prompt names the first twelve, the third more."""
    made = Synthesizer(
        make_trace(
            "t",
            4,
            [
                turn((1,), 6, output=4, session="s"),
                turn((1, 2, 3), 13, output=3, session="s"),
                turn((1, 2, 3, 4), 20, session="s"),
            ],
        )
    )
    answers = [[made.output_token(0, place) for place in range(4)]]
    answers += [[made.output_token(1, place) for place in range(3)]]

    assert made.prompt(1)[:10] == (*made.prompt(0), *answers[0])
    assert made.prompt(2)[:16] == (*made.prompt(1), *answers[1])


def test_a_turn_that_says_something_else_has_nothing_beyond_its_names() -> None:
    """The context was rewritten: the next turn does not begin with the blocks of this one."""
    made = Synthesizer(
        make_trace("t", 4, [turn((1, 2), 10, session="s"), turn((1, 3, 4), 12, session="s")])
    )

    assert made.prompt(0)[:4] == made.prompt(1)[:4]
    assert set(made.prompt(0)[4:]).isdisjoint(made.prompt(1))
