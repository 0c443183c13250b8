import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes_text import sentencepiece_metadata

from kokuban.text.detokenizer import Detokenizer
from kokuban.text.gguf_tokenizer import from_gguf

TOKENIZER = from_gguf(sentencepiece_metadata())


def id_of(piece: str) -> int:
    token_id = TOKENIZER.id_of(piece)
    assert token_id is not None
    return token_id


HELLO, WORLD, BARE, SPACE = map(id_of, ("▁Hello", "▁world", "Hello", "▁"))


def deltas(ids: list[int], *, skip_special: bool = True, continues: bool = False) -> list[str]:
    stream = Detokenizer(TOKENIZER, skip_special=skip_special, continues=continues)
    return [*map(stream.feed, ids), stream.finish()]


def test_a_completion_keeps_the_space_in_front_of_its_first_word() -> None:
    """Keeps B11 out: docs/bugbank.md."""
    assert deltas([WORLD, WORLD], continues=True) == [" world", " world", ""]
    assert TOKENIZER.decode([WORLD, WORLD], skip_special=True, continues=True) == " world world"


def test_a_text_of_its_own_loses_the_space_prefix_once() -> None:
    assert deltas([HELLO, WORLD]) == ["Hello", " world", ""]


def test_only_one_space_is_taken_off() -> None:
    """Keeps B11 out: docs/bugbank.md."""
    assert deltas([SPACE, SPACE, HELLO]) == ["", " ", " Hello", ""]


def test_a_first_word_without_space_ends_the_search_for_one() -> None:
    assert deltas([BARE, WORLD]) == ["Hello", " world", ""]


@pytest.mark.parametrize("skip_special", [True, False])
def test_a_leading_bos_does_not_stand_in_the_way(skip_special: bool) -> None:
    texts = deltas([1, HELLO, 2, WORLD], skip_special=skip_special)

    assert texts == (
        ["", "Hello", "", " world", ""] if skip_special else ["<s>", "Hello", "</s>", " world", ""]
    )


def test_byte_pieces_join_to_characters() -> None:
    assert deltas([3 + 0xC3, 3 + 0xA9, 3 + 0xFF, WORLD]) == ["", "é", "\ufffd", " world", ""]


@given(st.lists(st.integers(-1, TOKENIZER.vocab_size), max_size=30), st.booleans(), st.booleans())
def test_deltas_join_to_the_whole_text_for_any_ids(
    ids: list[int], skip_special: bool, continues: bool
) -> None:
    whole = TOKENIZER.decode(ids, skip_special=skip_special, continues=continues)

    assert "".join(deltas(ids, skip_special=skip_special, continues=continues)) == whole


@given(st.text(max_size=30))
def test_encoding_and_decoding_gives_the_text_back(text: str) -> None:
    """Keeps B72 out: docs/bugbank.md."""
    ids = TOKENIZER.encode(text, add_bos=True, parse_special=False)

    assert TOKENIZER.decode(ids, skip_special=True) == text
