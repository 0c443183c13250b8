"""What may follow an output under a grammar, token by token."""

from typing import Any

import numpy as np
import pytest
from tests.fakes_text import EOT, IM_END, byte_tokenizer, sentencepiece_metadata

from kokuban.core.errors import RequestError
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.sampling.grammar import CompiledGrammar, Constraint, GrammarCompiler
from kokuban.text.gguf_tokenizer import from_gguf
from kokuban.text.grammar import choice_grammar, json_schema_grammar, lark_grammar, regex_grammar

PIECES = ("ab", "111")
COMPILER = GrammarCompiler(byte_tokenizer(PIECES), [EOT], 264)
AB, ONES = 262, 263


def compiled(grammar: str) -> CompiledGrammar:
    return COMPILER.compile(grammar)


def begin(grammar: str, said: str = "", **params: Any) -> Constraint:
    ends = frozenset({EOT, *params.get("stop_token_ids", ())})
    request = Request(
        id=RequestId("r"),
        prompt_token_ids=(1,),
        params=SamplingParams(grammar=grammar, **params),
        end_token_ids=ends,
    )
    return compiled(grammar).begin(request, list(said.encode()))


def masks_of(constraint: Constraint, *drafts: int) -> list[set[int]]:
    masks = np.zeros((1 + len(drafts), constraint.width), np.uint32)
    constraint.fill(masks, drafts)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    return [set(np.flatnonzero(row).tolist()) for row in bits]


def allowed(grammar: str, said: str = "", **params: Any) -> set[int]:
    return masks_of(begin(grammar, said, **params))[0]


def test_every_token_that_begins_a_valid_text_may_follow_and_no_other() -> None:
    grammar = choice_grammar(["abc", "ax", "b"])

    assert allowed(grammar) == {ord("a"), ord("b"), AB}
    assert allowed(grammar, "a") == {ord("b"), ord("x")}


def test_the_end_may_follow_where_the_text_is_complete_and_only_there() -> None:
    grammar = regex_grammar("a+b?")

    assert EOT not in allowed(grammar)
    assert allowed(grammar, "a") == {ord("a"), ord("b"), AB, EOT}
    assert allowed(grammar, "ab") == {EOT}


def test_special_tokens_never_stand_for_their_text() -> None:
    assert IM_END not in allowed(regex_grammar(r"[<>|a-z_]+"))


@pytest.mark.parametrize("params", [{"min_tokens": 2}, {"ignore_eos": True}])
def test_the_end_waits_as_long_as_anything_else_may_follow(params: dict[str, Any]) -> None:
    grammar = regex_grammar("ab?")

    assert allowed(grammar, "a", **params) == {ord("b")}
    assert allowed(grammar, "ab", **params) == {EOT}


def test_stop_tokens_of_the_client_wait_for_min_tokens_likewise() -> None:
    grammar = regex_grammar("[xy]x?")

    assert allowed(grammar, min_tokens=2, stop_token_ids=(ord("x"),)) == {ord("y")}
    assert allowed(grammar, "x", min_tokens=2, stop_token_ids=(ord("x"),)) == {ord("x"), EOT}


def test_each_draft_is_looked_at_after_the_ones_before_it() -> None:
    first, second, third = masks_of(begin(choice_grammar(["abc", "ax"])), ord("a"), ord("x"))

    assert ord("a") in first
    assert second == {ord("b"), ord("x")}
    assert third == {EOT}


def test_after_a_draft_that_may_not_stand_there_nothing_may_follow() -> None:
    constraint = begin(choice_grammar(["abc"]))

    assert masks_of(constraint, ord("b"), ord("c"))[1:] == [set(), set()]
    assert masks_of(constraint, EOT)[1:] == [set()]


def test_drafts_leave_the_constraint_as_it_was() -> None:
    constraint = begin(json_schema_grammar({"type": "integer"}), "1")
    before = masks_of(constraint)

    masks_of(constraint, ord("2"), ord("3"), EOT)
    masks_of(constraint, *[ord("2")] * 70)

    assert masks_of(constraint) == before


def test_a_constraint_is_made_again_from_the_output() -> None:
    """B56: after preemption the grammar stands where it stood."""
    grammar = json_schema_grammar({"type": "object", "properties": {"a": {"type": "integer"}}})
    said = '{"a": 12'
    grown = begin(grammar)
    for token in said.encode():
        grown.append(token)

    assert masks_of(grown) == [allowed(grammar, said)]


def test_a_token_after_the_end_changes_nothing() -> None:
    """B56: the matcher is not advanced beyond its end."""
    constraint = begin(choice_grammar(["a"]), "a")
    for token in (EOT, EOT, ord("x")):
        constraint.append(token)

    assert constraint.error == ""
    assert masks_of(constraint) == [{EOT}]


def test_no_more_digits_may_follow_sixty_of_them() -> None:
    """B53: a number ends, by the token that would be too long."""
    grammar = json_schema_grammar({"type": "number"})

    assert ONES in allowed(grammar, "1" * 57)
    assert ONES not in allowed(grammar, "1" * 58)
    assert allowed(grammar, "1" * 60) == {ord("."), ord("e"), ord("E"), EOT}
    assert allowed(grammar, "1e12") == {EOT}


def test_digits_go_on_where_nothing_else_may_follow() -> None:
    grammar = 'start: /x[0-9]{70}/ | j\nj: %json {"type": "null"}'

    assert allowed(grammar, "x" + "0" * 65) >= {ord("0"), ord("9")}


def test_digits_in_a_grammar_that_is_no_json_are_the_clients_business() -> None:
    assert ord("1") in allowed(regex_grammar("[0-9]+"), "1" * 100)


def test_a_step_that_is_too_expensive_is_an_error_of_its_request() -> None:
    """Never free text: nothing may follow, and the constraint says why."""
    constraint = begin(lark_grammar("start: /a{1,20}/"), "a")
    constraint.append(ord("z"))  # as if a wrong token had come through

    assert masks_of(constraint) == [set()]
    assert "cannot be held to its grammar" in constraint.error


@pytest.mark.parametrize(
    ("grammar", "problem"),
    [
        ("", "Empty grammar"),
        ("start: (", "Expected token"),
        (json_schema_grammar({"pattern": "(["}), "pattern: regex parse error"),
        (json_schema_grammar({"$ref": "#/$defs/none"}), r"\$ref: Pointer"),
        ("start: " + "a" * 2**18, "the limit is 262144"),
        ("start: \ud83d", "surrogate"),
    ],
)
def test_what_cannot_be_built_is_refused(grammar: str, problem: str) -> None:
    """B10: never free text."""
    with pytest.raises(RequestError, match=problem) as caught:
        compiled(grammar)

    assert caught.value.param == "grammar"


def test_a_model_without_an_end_token_is_told_so() -> None:
    with pytest.raises(RequestError, match="no token that ends a text"):
        GrammarCompiler(byte_tokenizer(), [], 262).compile(regex_grammar("a"))


def test_a_forced_text_has_no_space_that_is_not_its_own() -> None:
    """A SentencePiece vocabulary puts one in front of every text that it encodes."""
    tokenizer = from_gguf(sentencepiece_metadata())
    compiler = GrammarCompiler(tokenizer, tokenizer.end_ids, tokenizer.vocab_size)
    request = Request(id=RequestId("r"), prompt_token_ids=(1,), params=SamplingParams())
    constraint = compiler.compile(choice_grammar(["Hello world"])).begin(request)
    said = b""
    while not tokenizer.end_ids >= masks_of(constraint)[0]:
        [token] = masks_of(constraint)[0]
        said += tokenizer.token_bytes(token)
        constraint.append(token)

    assert said == b"Hello world"


def test_ids_that_the_model_has_no_row_for_may_never_follow() -> None:
    compiler = GrammarCompiler(byte_tokenizer(PIECES), [EOT], 262)
    request = Request(id=RequestId("r"), prompt_token_ids=(1,), params=SamplingParams())

    constraint = compiler.compile(choice_grammar(["ab"])).begin(request)

    assert masks_of(constraint) == [{ord("a")}]
