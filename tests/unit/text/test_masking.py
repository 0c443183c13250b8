import pytest
from hypothesis import given
from hypothesis import strategies as st

from kokuban.text.masking import SpecialMask

SPECIALS = ("<|a|>", "<|a", "|>b", "¶", "<u1>", "<u22>")


@pytest.fixture(scope="module")
def mask() -> SpecialMask:
    return SpecialMask(SPECIALS)


def test_nothing_is_masked_without_need(mask: SpecialMask) -> None:
    assert mask.character_for({"a": ["plain", 3, None]}, "template") is None
    assert SpecialMask(()).character_for("<|a|>", "") is None


def test_texts_in_keys_are_found_too(mask: SpecialMask) -> None:
    assert mask.character_for({"x": [{"<|a|>": 1}]}, "") is not None


def test_the_mask_occurs_in_no_text(mask: SpecialMask) -> None:
    first = mask.character_for("<|a|>", "")
    assert first is not None

    second = mask.character_for(["<|a|>", first], "")
    third = mask.character_for("<|a|>", f"{first}{second}")

    assert second is not None
    assert len({first, second, third}) == 3


@pytest.mark.parametrize("text", ["<|a|>b", "<|A|>", "¶¶", "<u1><u999>", "<|a<|a|>|>"])
def test_no_special_text_is_left_and_all_of_it_comes_back(mask: SpecialMask, text: str) -> None:
    masked = mask.mask({text: [text, 1, True, None]}, "M")

    [(key, values)] = masked.items()
    assert not any(special.lower() in key.lower() for special in SPECIALS)
    assert values == [key, 1, True, None]
    assert mask.unmask(key, "M") == text


@given(st.text("<|a>b¶u1é", max_size=12))
def test_masking_hides_every_special_text(text: str) -> None:
    mask = SpecialMask(SPECIALS)

    masked = mask.mask(text, "M")

    assert not any(special in masked for special in SPECIALS)
    assert mask.unmask(masked, "M") == text
