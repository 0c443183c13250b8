"""What a client reads of what the engine says: texts, billed tokens, ends."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing

import pytest
from tests.fakes_text import EOT, FIRST_PIECE, IM_END, byte_tokenizer
from tests.server.fakes import FAILS, VOCAB, FakeEngine

from kokuban.core.errors import Overloaded, PromptTooLong, RequestError
from kokuban.core.request import FinishReason
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import Usage
from kokuban.engine.generation import TextDelta, generate

Chain = Mapping[int, int | Sequence[int]]
P = ord("p")
A, B, C, D, E = range(FIRST_PIECE, FIRST_PIECE + 5)
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


async def deltas_of(
    chain: Chain,
    params: SamplingParams,
    *,
    pieces: Sequence[str] = (),
    engine: FakeEngine | None = None,
    tokens_per_event: int = 1,
) -> list[TextDelta]:
    """Everything that comes for the prompt "p"."""
    engine = engine or FakeEngine(chain, tokens_per_event=tokens_per_event)
    tokenizer = byte_tokenizer(pieces)
    deltas = generate(engine, tokenizer, [P], params, end_token_ids=[EOT])
    return [delta async for delta in deltas]


def text_of(deltas: Sequence[TextDelta], choice: int = 0) -> str:
    return "".join(delta.text for delta in deltas if delta.choice == choice)


STOP_PIECES = ("DEF", "G!", "HI", "J!", "K!")
STOP_CHAIN = {P: A, A: B, B: C, C: D, D: E, E: EOT}


@pytest.mark.parametrize("tokens_per_event", [1, 2, 6])
@pytest.mark.parametrize(
    ("stops", "max_tokens", "text", "finish", "billed"),
    [
        (("DEFG!HIJ!",), 20, "", STOP, 4),
        (("DEFG!HIX",), 20, "DEFG!HIJ!K!", STOP, 6),
        (("HI",), 20, "DEFG!", STOP, 3),
        (("G!H",), 20, "DEF", STOP, 3),
        (("K!!", "J!K"), 20, "DEFG!HI", STOP, 5),
        (("DEFG!HIJ!",), 2, "DEFG!", LENGTH, 2),
    ],
)
async def test_a_stop_string_is_never_shown_and_held_back_text_is_never_lost(
    stops: tuple[str, ...],
    max_tokens: int,
    text: str,
    finish: FinishReason,
    billed: int,
    tokens_per_event: int,
) -> None:
    """Keeps B03 out: docs/bugbank.md."""
    params = SamplingParams(stop=stops, max_tokens=max_tokens)

    deltas = await deltas_of(
        STOP_CHAIN, params, pieces=STOP_PIECES, tokens_per_event=tokens_per_event
    )

    assert text_of(deltas) == text
    assert deltas[-1].finish is finish
    assert deltas[-1].usage is not None
    assert deltas[-1].usage.output_tokens == billed
    assert sum(len(delta.tokens) for delta in deltas) == billed


async def test_text_that_cannot_become_a_stop_string_is_sent_at_once() -> None:
    """Keeps B03 out: docs/bugbank.md."""
    params = SamplingParams(stop=("HIX",), max_tokens=20)

    deltas = await deltas_of(STOP_CHAIN, params, pieces=STOP_PIECES)

    assert [delta.text for delta in deltas] == ["DEF", "G!", "", "HIJ!", "K!", ""]


async def test_the_stop_string_that_ended_the_text_is_told() -> None:
    deltas = await deltas_of(STOP_CHAIN, SamplingParams(stop=("X", "HI")), pieces=STOP_PIECES)

    assert deltas[-1].stop_reason == "HI"


async def test_a_choice_is_cancelled_at_its_stop_string_while_the_others_go_on() -> None:
    chain: Chain = {P: [A, B], A: D, B: D, D: E, E: EOT}
    engine = FakeEngine(chain)
    params = SamplingParams(stop=("DEF",), n=8, seed=3, max_tokens=9)

    deltas = await deltas_of(chain, params, pieces=STOP_PIECES, engine=engine)

    ends = {d.choice: (text_of(deltas, d.choice), d.usage) for d in deltas if d.finish}
    assert {text for text, _ in ends.values()} == {"", "G!J!K!"}
    for text, usage in ends.values():
        assert usage is not None
        assert usage.output_tokens == (4 if text else 1)
    stopped = sum(not text for text, _ in ends.values())
    assert engine.said == stopped * 1 + (8 - stopped) * 4


async def test_a_character_of_several_tokens_comes_whole() -> None:
    """Keeps B04 out: docs/bugbank.md."""
    chain = {P: 0xF0, 0xF0: 0x9F, 0x9F: 0x98, 0x98: 0x80, 0x80: ord("a"), ord("a"): EOT}

    deltas = await deltas_of(chain, SamplingParams(max_tokens=20))

    assert [delta.text for delta in deltas] == ["", "", "", "😀", "a", ""]
    assert deltas[-1].finish is STOP


async def test_half_a_character_at_the_limit_is_one_replacement_character() -> None:
    """Keeps B04 out: docs/bugbank.md."""
    deltas = await deltas_of({P: 0xF0, 0xF0: 0x9F}, SamplingParams(max_tokens=2))

    assert text_of(deltas) == "\ufffd"
    assert deltas[-1].finish is LENGTH


async def test_a_byte_that_is_no_utf8_does_not_stall_the_stream() -> None:
    """Keeps B04 out: docs/bugbank.md."""
    deltas = await deltas_of({P: 0x80, 0x80: ord("b"), ord("b"): EOT}, SamplingParams())

    assert text_of(deltas) == "\ufffdb"


@pytest.mark.parametrize("skip_special", [True, False])
async def test_a_special_token_can_be_a_stop_string(skip_special: bool) -> None:
    """Keeps B06 out: docs/bugbank.md."""
    params = SamplingParams(stop=("<|im_end|>",), max_tokens=20, skip_special_tokens=skip_special)

    deltas = await deltas_of({P: A, A: IM_END}, params, pieces=["hi"])

    assert text_of(deltas) == "hi"
    assert deltas[-1].finish is STOP
    assert deltas[-1].usage == Usage(1, 2)


@pytest.mark.parametrize("skip_special", [True, False])
@pytest.mark.parametrize("end", [EOT, B])
async def test_a_stop_token_takes_nothing_of_the_text_with_it(skip_special: bool, end: int) -> None:
    """Keeps B19 out: docs/bugbank.md."""
    params = SamplingParams(stop_token_ids=(end,), skip_special_tokens=skip_special)

    deltas = await deltas_of({P: A, A: end}, params, pieces=["injury.", "END"])

    assert text_of(deltas) == "injury."
    assert deltas[-1].finish is STOP
    assert deltas[-1].stop_reason == end


async def test_a_stop_token_shows_when_stops_are_to_be_included() -> None:
    """Keeps B19 out: docs/bugbank.md."""
    params = SamplingParams(stop_token_ids=(B,), include_stop=True)

    deltas = await deltas_of({P: A, A: B}, params, pieces=["injury.", "END"])

    assert text_of(deltas) == "injury.END"


async def test_the_models_own_end_never_shows() -> None:
    params = SamplingParams(include_stop=True, skip_special_tokens=False)

    deltas = await deltas_of({P: A, A: EOT}, params, pieces=["hi"])

    assert text_of(deltas) == "hi"
    assert deltas[-1].stop_reason is None


@pytest.mark.parametrize("max_tokens", [1, 2, 5])
async def test_as_many_tokens_come_as_the_limit_says(max_tokens: int) -> None:
    """Keeps B34 out: docs/bugbank.md."""
    deltas = await deltas_of({}, SamplingParams(max_tokens=max_tokens))

    assert text_of(deltas) == "p" * max_tokens
    assert deltas[-1].finish is LENGTH
    assert deltas[-1].usage == Usage(1, max_tokens)


async def test_an_end_token_at_the_limit_is_a_stop() -> None:
    """Keeps B34 out: docs/bugbank.md."""
    chain = {P: A, A: B, B: C, C: D, D: EOT}

    deltas = await deltas_of(chain, SamplingParams(max_tokens=5), pieces=STOP_PIECES)

    assert deltas[-1].finish is STOP
    assert deltas[-1].usage == Usage(1, 5)


async def test_ignore_eos_goes_past_the_models_end_but_not_past_the_clients() -> None:
    chain = {P: EOT, EOT: A, A: B}
    params = SamplingParams(ignore_eos=True, stop_token_ids=(B,), max_tokens=9)

    deltas = await deltas_of(chain, params, pieces=["on", "END"])

    assert text_of(deltas) == "on"
    assert deltas[-1].usage == Usage(1, 3)


async def test_a_grammar_ends_the_text_also_where_ends_are_ignored() -> None:
    """What has come to its end has nothing to go on with."""
    params = SamplingParams(max_tokens=9, ignore_eos=True, grammar="start: /a/")

    deltas = await deltas_of({P: A, A: EOT, EOT: A}, params, pieces=("a!",))

    assert (text_of(deltas), deltas[-1].finish) == ("a!", STOP)


async def test_stop_strings_wait_for_min_tokens() -> None:
    """Keeps B87 out: docs/bugbank.md."""
    newline = ord("\n")
    chain = {P: newline, newline: ord("a"), ord("a"): ord("b"), ord("b"): A, A: EOT}
    params = SamplingParams(stop=("\n",), min_tokens=3, max_tokens=20)

    deltas = await deltas_of(chain, params, pieces=["\n\n"])

    assert text_of(deltas) == "\nab"
    assert deltas[-1].finish is STOP


async def test_choices_share_the_seed_and_differ_in_their_counter() -> None:
    """Keeps B29 out: docs/bugbank.md."""
    engine = FakeEngine({})
    params = SamplingParams(n=3, seed=7, max_tokens=1)

    await deltas_of({}, params, engine=engine)

    assert [(r.seed, r.choice, r.params.n) for r in engine.submitted] == [
        (7, 0, 1),
        (7, 1, 1),
        (7, 2, 1),
    ]
    assert len({r.id for r in engine.submitted}) == 3


async def test_a_seed_is_drawn_when_none_is_given() -> None:
    engine = FakeEngine({})

    await deltas_of({}, SamplingParams(max_tokens=1), engine=engine)
    await deltas_of({}, SamplingParams(max_tokens=1), engine=engine)

    first, second = engine.submitted
    assert first.seed == first.params.seed
    assert first.seed != second.seed
    assert first.id != second.id


async def test_closing_the_generator_cancels_every_choice() -> None:
    engine = FakeEngine({})
    deltas = generate(engine, byte_tokenizer(), [P], SamplingParams(n=3))

    async with aclosing(deltas):
        await anext(deltas)
        assert engine.stats().running == 3

    assert engine.stats().running == 0


async def test_a_failed_choice_ends_with_the_engines_words() -> None:
    deltas = await deltas_of({P: A, A: FAILS}, SamplingParams(), pieces=["hi"])

    assert text_of(deltas) == "hi"
    assert deltas[-1].finish is FinishReason.ERROR
    assert deltas[-1].error == "no number"


async def test_an_id_outside_the_vocabulary_gives_no_text_and_no_harm() -> None:
    """Keeps B88 out: docs/bugbank.md."""
    deltas = await deltas_of({P: 500, 500: A, A: EOT}, SamplingParams(), pieces=["hi"])

    assert text_of(deltas) == "hi"
    assert deltas[-1].finish is STOP


@pytest.mark.parametrize("outside", [-1, VOCAB, 2**40])
async def test_ids_outside_the_vocabulary_never_reach_the_engine(outside: int) -> None:
    """Keeps B26 out: docs/bugbank.md."""
    engine = FakeEngine({P: EOT})

    async def run(prompt: list[int], params: SamplingParams) -> None:
        async for _ in generate(engine, byte_tokenizer(), prompt, params):
            pass

    with pytest.raises(RequestError, match=f"the prompt holds token {outside}"):
        await run([P, outside], SamplingParams())
    with pytest.raises(RequestError, match=f"logit_bias names token {outside}"):
        await run([P], SamplingParams(logit_bias={outside: 1.0}))
    with pytest.raises(RequestError, match=f"stop_token_ids names token {outside}"):
        await run([P], SamplingParams(stop_token_ids=(outside,)))
    assert engine.submitted == []


async def test_the_engines_refusal_is_raised_before_anything_comes() -> None:
    engine = FakeEngine({}, max_context_tokens=1)
    with pytest.raises(PromptTooLong):
        await deltas_of({}, SamplingParams(), engine=engine)

    full = FakeEngine({}, seats=0, max_waiting=0)
    with pytest.raises(Overloaded, match="queue is full"):
        await deltas_of({}, SamplingParams(), engine=full)


async def test_usage_keeps_what_the_engine_reported() -> None:
    engine = FakeEngine({P: EOT}, cached_tokens=1)

    deltas = await deltas_of({}, SamplingParams(), engine=engine)

    assert deltas[-1].usage == Usage(1, 1, cached_tokens=1)


async def test_prompt_logprobs_are_passed_on() -> None:
    engine = FakeEngine({})
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    prompt = [P, 2, 3]

    deltas = [d async for d in generate(engine, byte_tokenizer(), prompt, params)]

    assert [t.token_id for d in deltas for t in d.prompt_logprobs] == [2, 3]
