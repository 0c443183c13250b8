import logging
from typing import Any

import pytest
from tests.fakes_text import sentencepiece_metadata
from tests.tokenizer_vectors import vectors, vocabulary

from kokuban.core.errors import ModelError
from kokuban.text.detokenizer import Detokenizer
from kokuban.text.gguf_tokenizer import TokenType, from_gguf, merges_by_score
from kokuban.text.tokenizer import Tokenizer, byte_alphabet

FAMILIES = (
    "deepseek-coder",
    "deepseek-llm",
    "falcon",
    "gpt-2",
    "llama-bpe",
    "llama-spm",
    "mpt",
    "phi-3",
    "qwen2",
    "qwen35",
    "refact",
    "starcoder",
)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, Tokenizer]:
    return request.param, from_gguf(vocabulary(request.param))


def test_every_claimed_family_encodes_every_reference_text(family: tuple[str, Tokenizer]) -> None:
    name, tokenizer = family
    cases = vectors(name)

    found = [tokenizer.encode(text, add_bos=False, parse_special=False) for text, _ in cases]

    assert len(cases) >= 47
    assert [ids for _, ids in cases] == found


def test_streamed_text_equals_whole_text_on_every_reference_text(
    family: tuple[str, Tokenizer],
) -> None:
    name, tokenizer = family
    for text, ids in vectors(name):
        stream = Detokenizer(tokenizer, skip_special=True)
        deltas = [stream.feed(token_id) for token_id in ids]
        deltas.append(stream.finish())

        assert text == "".join(deltas)
        assert text == tokenizer.decode(ids, skip_special=True)


def byte_level_metadata(pre: str | None, **more: Any) -> dict[str, Any]:
    """A vocabulary of single bytes, 'an' and a few pieces of digits, with one control token."""
    tokens = [*sorted(byte_alphabet()), "12", "123", "45", "<|end|>"]
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - 1) + [int(TokenType.CONTROL)],
        "tokenizer.ggml.merges": ["1 2", "12 3", "4 5"],
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
    }
    if pre is not None:
        metadata["tokenizer.ggml.pre"] = pre
    return metadata | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def pieces(tokenizer: Tokenizer, text: str) -> list[str]:
    ids = tokenizer.encode(text, add_bos=False, parse_special=False)
    return [tokenizer.token_text(token_id) for token_id in ids]


@pytest.mark.parametrize(
    ("pre", "digits"),
    [
        ("llama-bpe", ["123", "45"]),
        ("qwen2", ["1", "2", "3", "4", "5"]),
        ("gpt-2", ["123", "45"]),
        ("smollm", ["1", "2", "3", "4", "5"]),
    ],
)
def test_the_named_pre_tokenizer_decides_how_digits_are_cut(pre: str, digits: list[str]) -> None:
    """Keeps B70 out: docs/bugbank.md."""
    assert digits == pieces(from_gguf(byte_level_metadata(pre)), "12345")


def test_a_missing_pre_tokenizer_is_reported_and_the_default_used(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Keeps B70 out: docs/bugbank.md."""
    with caplog.at_level(logging.WARNING):
        tokenizer = from_gguf(byte_level_metadata(None))

    assert "does not name its pre-tokenizer" in caplog.text
    assert "does not name its pre-tokenizer" in tokenizer.warnings[0]
    assert "'default'" in caplog.text
    assert pieces(tokenizer, "12345") == ["123", "45"]


def test_an_unknown_pre_tokenizer_is_refused_by_name() -> None:
    """Keeps B70 out: docs/bugbank.md."""
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.pre='foo' is not known.*llama-bpe"):
        from_gguf(byte_level_metadata("foo"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "bert"}, "model='bert' is not supported"),
        ({"tokens": []}, "tokens is empty"),
        ({"tokens": None}, "no list tokenizer.ggml.tokens"),
        ({"token_type": [1]}, "token_type has 1 entries for 260 tokens"),
        ({"merges": ["x yy"]}, "contradicts itself"),
        ({"merges": ["12"]}, "contradicts itself"),
        ({"eos_token_id": 260}, "eos_token_id=260, but the vocabulary has 260"),
    ],
)
def test_a_contradictory_vocabulary_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_gguf(byte_level_metadata("gpt-2", **change))


@pytest.mark.parametrize(("ignore", "expected"), [(True, ["xyz"]), (False, ["x", "y", "z"])])
def test_the_best_rank_is_merged_first(ignore: bool, expected: list[str]) -> None:
    """Keeps B69 out: docs/bugbank.md."""
    tokens = [*sorted(byte_alphabet()), "ab", "bc", "aa", "xyz"]
    tokenizer = from_gguf(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "llama-bpe" if ignore else "gpt-2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": ["b c", "a b", "a a"],
            "tokenizer.ggml.eos_token_id": 0,
        }
    )

    assert pieces(tokenizer, "abc") == ["a", "bc"]
    assert pieces(tokenizer, "aaa") == ["aa", "a"]
    assert expected == pieces(tokenizer, "xyz")


def test_merges_come_from_scores_best_first_and_never_from_special_pieces() -> None:
    merges = merges_by_score(
        ["<s>", "<", "s", ">", "ab", "b", "a", "aba", "ba", "<s"],
        [3, 1, 1, 1, 1, 1, 1, 1, 1, 1],
        [0.0, -9, -9, -9, -2, -9, -9, -1, -3, -4],
    )

    assert merges == [("ab", "a"), ("a", "ba"), ("a", "b"), ("b", "a"), ("<", "s")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("user", ["▁user"]),
        ("<s>user", ["<s>", "▁user"]),
        ("</s> user", ["</s>", "▁user"]),
        ("</s>user", ["</s>", "user"]),
        (" user", ["▁", "▁user"]),
        ("", []),
        ("user</s>user", ["▁user", "</s>", "user"]),
        ("é", ["▁", "<0xC3>", "<0xA9>"]),
        ("\0", ["▁", "<0x00>"]),
    ],
)
def test_the_space_prefix_is_added_once_where_the_text_begins(
    text: str, expected: list[str]
) -> None:
    """Keeps B72 out: docs/bugbank.md."""
    tokenizer = from_gguf(sentencepiece_metadata())

    ids = tokenizer.encode(text, add_bos=False, parse_special=True)

    assert expected == [tokenizer.piece_of(token_id) for token_id in ids]


@pytest.mark.parametrize("text", ["user", "<s>user", "</s> user", " user", "<s> user", "\0é"])
def test_decoding_and_encoding_again_changes_nothing(text: str) -> None:
    """Keeps B72 out: docs/bugbank.md."""
    tokenizer = from_gguf(sentencepiece_metadata())
    ids = tokenizer.encode(text, add_bos=False, parse_special=True)

    for _ in range(5):
        text_again = tokenizer.decode(ids, skip_special=False)
        assert text == text_again
        assert ids == tokenizer.encode(text_again, add_bos=False, parse_special=True)


def test_a_vocabulary_without_space_prefix_adds_none() -> None:
    tokenizer = from_gguf(sentencepiece_metadata(add_space_prefix=False))

    ids = tokenizer.encode("user", add_bos=True, parse_special=True)

    assert [tokenizer.piece_of(token_id) for token_id in ids] == ["<s>", "user"]
    assert tokenizer.decode([tokenizer.id_of("▁user") or -1], skip_special=True) == " user"


def test_phi_3_strips_white_space_after_its_special_tokens() -> None:
    """Keeps B71 out: docs/bugbank.md."""
    tokenizer = from_gguf(vocabulary("phi-3"))

    ids = tokenizer.encode(
        "<|user|>\nHello<|end|>\n<|assistant|>\n", add_bos=False, parse_special=True
    )

    found = [tokenizer.piece_of(token_id) for token_id in ids]
    assert found == ["<|user|>", "▁Hello", "<|end|>", "<|assistant|>"]


def test_end_ids_hold_every_token_that_ends_a_turn() -> None:
    """Keeps B17 out: docs/bugbank.md."""
    tokenizer = from_gguf(
        byte_level_metadata("gpt-2", eos_token_id=0, eot_token_id=1, eom_token_id=2),
        end_ids=[5],
    )

    assert {0, 1, 2, 5, 259} == tokenizer.end_ids
    assert tokenizer.eos_id == 0
    assert {0, 1, 259} == tokenizer.special_ids


def test_a_missing_end_token_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = from_gguf(byte_level_metadata("gpt-2", eos_token_id=None))

    assert "names no end-of-text token" in caplog.text
    assert {259} == tokenizer.end_ids


def test_padding_rows_stand_for_nothing() -> None:
    metadata = byte_level_metadata("gpt-2")
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], "[PAD260]"]
    metadata["tokenizer.ggml.token_type"] = [*metadata["tokenizer.ggml.token_type"], 4]
    tokenizer = from_gguf(metadata)

    assert tokenizer.vocab_size == 261
    assert tokenizer.token_bytes(260) == b""
    assert len(tokenizer.encode("[PAD260]", add_bos=False, parse_special=True)) == 8


def test_user_defined_tokens_are_found_in_every_text() -> None:
    tokenizer = from_gguf(vocabulary("mpt"))
    spaces = tokenizer.id_of(" " * 24)

    assert [spaces] == tokenizer.encode(" " * 24, add_bos=False, parse_special=False)
