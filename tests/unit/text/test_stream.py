import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes_text import (
    BOS,
    EOT,
    FIRST_PIECE,
    IM_END,
    IM_START,
    TOOL_CALL,
    byte_tokenizer,
)

from kokuban.text.stream import StreamDelta, TextStream

PIECES = ("DEF", "HI", "injury.", "END", "😀")
TOKENIZER = byte_tokenizer(PIECES)
DEF, HI, INJURY, END, SMILE = range(FIRST_PIECE, FIRST_PIECE + len(PIECES))
G, J, K = b"GJK"


def run(stream: TextStream, ids: list[int]) -> tuple[list[str], StreamDelta | None]:
    """All deltas, and the one that stopped."""
    texts = []
    for token_id in ids:
        delta = stream.feed(token_id)
        texts.append(delta.text)
        if delta.stopped:
            return texts, delta
    return [*texts, stream.finish()], None


@pytest.mark.parametrize(
    ("stops", "text", "num_tokens"),
    [
        (["DEFGHIJ"], "", 4),
        (["DEFGHIX"], "DEFGHIJK", 5),
        (["HI"], "DEFG", 3),
        (["GH"], "DEF", 3),
        (["K!", "JK"], "DEFGHI", 5),
    ],
)
def test_tokens_count_up_to_the_one_that_completes_the_stop(
    stops: list[str], text: str, num_tokens: int
) -> None:
    stream = TextStream(TOKENIZER, stops=stops)

    texts, _ = run(stream, [DEF, G, HI, J, K])

    assert ("".join(texts), stream.num_tokens) == (text, num_tokens)


def test_tokens_after_the_stop_change_nothing() -> None:
    stream = TextStream(TOKENIZER, stops=["HI"])
    run(stream, [DEF, HI])

    assert stream.feed(K) == StreamDelta("", stopped=True)
    assert stream.finish() == ""
    assert stream.num_tokens == 2


def test_a_text_that_ends_inside_a_possible_stop_is_given_whole() -> None:
    texts, stop = run(TextStream(TOKENIZER, stops=["DEFGHIJ"]), [DEF, G])

    assert (texts, stop) == (["", "", "DEFG"], None)


def test_the_stop_stays_in_the_text_if_asked_for() -> None:
    texts, stop = run(TextStream(TOKENIZER, stops=["GH"], include_stop=True), [DEF, G, HI])

    assert texts == ["DEF", "", "GH"]
    assert stop is not None
    assert stop.stop == "GH"


def test_characters_of_several_tokens_come_whole() -> None:
    """Keeps B04 out: docs/bugbank.md."""
    texts, _ = run(TextStream(TOKENIZER), [0xF0, 0x9F, 0x98, 0x80, ord("a")])

    assert texts == ["", "", "", "😀", "a", ""]


def test_an_unfinished_character_gives_one_replacement_at_the_end() -> None:
    texts, _ = run(TextStream(TOKENIZER), [0xF0, 0x9F])

    assert texts == ["", "", "\ufffd"]
    assert TOKENIZER.decode([0xF0, 0x9F], skip_special=True) == "\ufffd"


def test_an_invalid_byte_does_not_stall_the_stream() -> None:
    """Keeps B04 out: docs/bugbank.md."""
    texts, _ = run(TextStream(TOKENIZER), [0x80, ord("b")])

    assert texts == ["\ufffd", "b", ""]


def test_bytes_of_tokens_are_exact() -> None:
    """Keeps B14 out: docs/bugbank.md."""
    ids = [0xF0, 0x9F, 0x98, 0x80]

    assert [TOKENIZER.token_bytes(i) for i in ids] == [b"\xf0", b"\x9f", b"\x98", b"\x80"]
    assert TOKENIZER.token_bytes(SMILE) == "😀".encode()
    assert TOKENIZER.token_text(0xF0) == "\ufffd"


@pytest.mark.parametrize("skip_special", [True, False])
def test_a_special_token_as_stop_string_is_found(skip_special: bool) -> None:
    """Keeps B06 out: docs/bugbank.md."""
    stream = TextStream(TOKENIZER, stops=["<|im_end|>"], skip_special=skip_special)

    texts, stop = run(stream, [ord("h"), ord("i"), IM_END, ord("m")])

    assert "".join(texts) == "hi"
    assert stop == StreamDelta("", stopped=True, stop="<|im_end|>")
    assert stream.num_tokens == 3


def test_what_was_held_comes_out_before_a_special_stop() -> None:
    texts, _ = run(TextStream(TOKENIZER, stops=["hix", "<|im_end|>"]), [*b"hi", IM_END])

    assert texts == ["", "", "hi"]


@pytest.mark.parametrize("skip_special", [True, False])
@pytest.mark.parametrize("end", [EOT, END])
@pytest.mark.parametrize("include_stop", [True, False])
def test_an_end_token_takes_nothing_from_the_text(
    skip_special: bool, end: int, include_stop: bool
) -> None:
    """Keeps B19 out: docs/bugbank.md."""
    stream = TextStream(
        TOKENIZER, end_token_ids=[end], skip_special=skip_special, include_stop=include_stop
    )

    texts, stop = run(stream, [INJURY, end])

    own = {EOT: "<|eot|>", END: "END"}[end] if include_stop else ""
    assert "".join(texts) == "injury." + own
    assert stop == StreamDelta(own, stopped=True, stop=None)
    assert stream.num_tokens == 2


def test_special_tokens_are_hidden_and_added_ones_are_not() -> None:
    ids = [IM_START, *b"a", TOOL_CALL, IM_END, *b"b"]

    hidden, _ = run(TextStream(TOKENIZER), ids)
    shown, _ = run(TextStream(TOKENIZER, skip_special=False), ids)

    assert "".join(hidden) == "a<tool_call>b"
    assert "".join(shown) == "<|im_start|>a<tool_call><|im_end|>b"


def test_stops_do_not_count_within_min_tokens() -> None:
    """Keeps B87 out: docs/bugbank.md."""
    newline = ord("\n")
    stream = TextStream(TOKENIZER, stops=["\n"], min_tokens=3)

    texts, stop = run(stream, [newline, *b"ab", newline, *b"c"])

    assert "".join(texts) == "\nab"
    assert stop is not None
    assert stream.num_tokens == 4


def test_a_space_of_a_byte_level_model_is_kept() -> None:
    """Keeps B11 out: docs/bugbank.md."""
    texts, _ = run(TextStream(TOKENIZER), [*b" x"])

    assert texts == [" ", "x", ""]


@pytest.mark.parametrize("token_id", [-1, 10_000])
def test_an_id_outside_the_vocabulary_gives_no_text_and_a_log_line(
    token_id: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Keeps B88 out: docs/bugbank.md."""
    with caplog.at_level(logging.WARNING):
        texts, _ = run(TextStream(TOKENIZER), [ord("a"), token_id, ord("b")])

    assert "".join(texts) == "ab"
    assert f"token id {token_id} is outside the vocabulary" in caplog.text


def test_a_text_of_many_ids_outside_the_vocabulary_has_one_log_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        run(TextStream(TOKENIZER), [10_000, 10_001] * 50)

    assert [record.args for record in caplog.records] == [(10_000,)]


def test_nul_comes_out() -> None:
    """Keeps B105 out: docs/bugbank.md."""
    texts, _ = run(TextStream(TOKENIZER), [*b"A\0B"])

    assert "".join(texts) == "A\0B"


IDS = st.lists(
    st.one_of(st.integers(0, BOS + 20), st.sampled_from([0xF0, 0x9F, 0x98, 0x80, 0xE3, 0x81])),
    max_size=30,
)


@given(IDS, st.booleans())
def test_deltas_join_to_the_whole_text_for_any_ids(ids: list[int], skip_special: bool) -> None:
    texts, _ = run(TextStream(TOKENIZER, skip_special=skip_special), ids)

    assert "".join(texts) == TOKENIZER.decode(ids, skip_special=skip_special)


@given(IDS)
def test_text_is_the_decoded_bytes(ids: list[int]) -> None:
    data = b"".join(TOKENIZER.token_bytes(token_id) for token_id in ids)

    assert TOKENIZER.decode(ids, skip_special=False) == data.decode("utf-8", errors="replace")


@given(IDS, st.lists(st.text("ab\n\ufffd", min_size=1, max_size=3), max_size=3))
def test_a_stream_ends_at_the_first_stop_of_the_whole_text(
    ids: list[int], stops: list[str]
) -> None:
    texts, stop = run(TextStream(TOKENIZER, stops=stops), ids)

    whole = TOKENIZER.decode(ids, skip_special=True)
    ends = [
        end for end in range(len(whole) + 1) if any(whole[:end].endswith(stop) for stop in stops)
    ]
    if ends:
        longest = max((s for s in stops if whole[: ends[0]].endswith(s)), key=len)
        assert "".join(texts) == whole[: ends[0] - len(longest)]
    else:
        assert ("".join(texts), stop) == (whole, None)
