import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.text.stops import StopMatch, StopMatcher


def run(stops: list[str], pieces: list[str]) -> tuple[list[str], str | None]:
    """The released pieces and the stop."""
    matcher = StopMatcher(stops)
    released: list[str] = []
    for piece in pieces:
        found = matcher.feed(piece)
        if isinstance(found, StopMatch):
            return [*released, found.text], found.stop
        released.append(found)
    return [*released, matcher.finish()], None


@pytest.mark.parametrize(
    ("stops", "text", "stop"),
    [
        (["DEFGHIJ"], "", "DEFGHIJ"),
        (["DEFGHIX"], "DEFGHIJK", None),
        (["HI"], "DEFG", "HI"),
        (["GH"], "DEF", "GH"),
        (["K!", "JK"], "DEFGHI", "JK"),
    ],
)
def test_a_stop_over_several_tokens_is_neither_leaked_nor_lost(
    stops: list[str], text: str, stop: str | None
) -> None:
    released, found = run(stops, ["DEF", "G", "HI", "J", "K"])

    assert ("".join(released), found) == (text, stop)


def test_only_what_may_become_a_match_is_held() -> None:
    released, _ = run(["HIX"], ["DEF", "G", "HI", "J", "K"])

    assert released == ["DEF", "G", "", "HIJ", "K", ""]


def test_text_is_released_as_soon_as_it_cannot_match() -> None:
    released, _ = run(["aab"], ["a", "a", "a", "a", "c"])

    assert released == ["", "", "a", "a", "aac", ""]


def test_the_match_that_is_complete_first_wins() -> None:
    assert run(["abc", "b"], ["abc"]) == (["a"], "b")
    assert run(["abc", "b"], ["a", "b", "c"]) == (["", "a"], "b")


def test_the_longest_of_the_matches_that_end_together_wins() -> None:
    assert run(["c", "abc", "bc"], ["xabc"]) == (["x"], "abc")


def test_a_match_that_may_not_count_is_text() -> None:
    matcher = StopMatcher(["\n"])

    assert matcher.feed("\na", may_stop=False) == "\na"
    assert matcher.feed("b\nc") == StopMatch("b", "\n")


def test_nul_is_a_character_like_any_other() -> None:
    assert run(["\0"], ["a", "b\0c"]) == (["a", "b"], "\0")


def reference(stops: list[str], text: str) -> tuple[str, str | None]:
    """The rule, written down slowly: grow the text by characters until it ends with a stop."""
    for end in range(1, len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            stop = max(found, key=len)
            return text[: end - len(stop)], stop
    return text, None


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=8),
)
def test_any_cutting_gives_what_the_rule_says(stops: list[str], pieces: list[str]) -> None:
    released, stop = run(stops, pieces)

    assert ("".join(released), stop) == reference(stops, "".join(pieces))


@given(
    st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.text("abc", max_size=4), max_size=8),
)
def test_no_more_is_held_than_the_longest_beginning_of_a_stop(
    stops: list[str], pieces: list[str]
) -> None:
    matcher = StopMatcher(stops)
    text = released = ""
    for piece in pieces:
        text += piece
        found = matcher.feed(piece)
        if isinstance(found, StopMatch):
            return
        released += found
        held = max(
            k for k in range(len(text) + 1) if k == 0 or any(s.startswith(text[-k:]) for s in stops)
        )
        assert released == text[: len(text) - held]
