import json
from typing import Any

import pytest
import tokenizers
from tests.fakes_text import BOS, EOT, IM_END, TOOL_CALL, byte_tokenizer, byte_tokenizer_json

from kokuban.core.errors import ModelError
from kokuban.text.hf_tokenizer import from_hf
from kokuban.text.tokenizer import byte_alphabet


def tokenizer_json(**changes: Any) -> str:
    return json.dumps(json.loads(byte_tokenizer_json()) | changes)


def added(*tokens: dict[str, Any], first_id: int = 256) -> list[dict[str, Any]]:
    """Entries of `added_tokens`; flags that a token does not name are false."""
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    return [flags | token | {"id": first_id + i} for i, token in enumerate(tokens)]


STRIPPING = tokenizer_json(
    normalizer={"type": "Lowercase"},
    added_tokens=added(
        {"content": "<|u|>", "rstrip": True},
        {"content": "<|l|>", "lstrip": True},
        {"content": "<|w|>", "single_word": True},
        {"content": "Tok", "normalized": True},
        {"content": "<|im"},
        {"content": "<|im_end|>"},
    ),
)


@pytest.mark.parametrize(
    "text", ["<|u|>  Hi", "<|u|>Hi", "a  <|l|>", "x<|w|>y", "x <|w|> y", "tok TOK", "<|im_end|>"]
)
def test_flags_of_added_tokens_are_honoured_as_the_library_does(text: str) -> None:
    """Keeps B71 out: docs/bugbank.md."""
    expected = tokenizers.Tokenizer.from_str(STRIPPING).encode(text, add_special_tokens=False).ids

    ids = from_hf(STRIPPING).encode(text, add_bos=False, parse_special=True)

    assert ids == expected


def test_the_longest_added_token_wins() -> None:
    assert from_hf(STRIPPING).encode("<|im_end|>", add_bos=False, parse_special=False) == [261]


def test_special_tokens_are_text_unless_asked_for() -> None:
    tokenizer = byte_tokenizer()

    plain = tokenizer.encode("a<|im_end|><tool_call>", add_bos=False, parse_special=False)
    special = tokenizer.encode("a<|im_end|><tool_call>", add_bos=False, parse_special=True)

    assert plain == [*b"a<|im_end|>", TOOL_CALL]
    assert special == [ord("a"), IM_END, TOOL_CALL]
    assert tokenizer.decode(plain, skip_special=True) == "a<|im_end|><tool_call>"
    assert tokenizer.decode(special, skip_special=True) == "a<tool_call>"


@pytest.mark.parametrize("token", ["<|bos|>", {"content": "<|bos|>", "special": True}])
@pytest.mark.parametrize(("stated", "expected"), [(True, True), (False, False), (None, False)])
def test_bos_is_read_from_the_configuration(
    token: Any, stated: bool | None, expected: bool
) -> None:
    config = {"bos_token": token, "add_bos_token": stated}

    tokenizer = from_hf(byte_tokenizer_json(), config, end_ids=[EOT])

    assert (tokenizer.bos_id, tokenizer.add_bos) == (BOS, expected)


def test_bos_is_read_from_the_post_processor_when_nothing_else_says_so() -> None:
    text = tokenizer_json(
        post_processor={
            "type": "TemplateProcessing",
            "single": [
                {"SpecialToken": {"id": "<|bos|>", "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
            ],
            "pair": [],
            "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [256], "tokens": ["<|bos|>"]}},
        }
    )

    tokenizer = from_hf(text, {"bos_token": "<|bos|>"}, end_ids=[EOT])

    assert tokenizer.add_bos
    assert tokenizer.encode("a", add_bos=False, parse_special=True) == [97]


def test_one_bos_however_it_is_asked_for() -> None:
    """Keeps B16 out: docs/bugbank.md."""
    tokenizer = byte_tokenizer(add_bos=True)

    assert tokenizer.encode("hi", add_bos=True, parse_special=True) == [BOS, *b"hi"]
    assert tokenizer.encode("<|bos|>hi", add_bos=True, parse_special=True) == [BOS, *b"hi"]
    assert tokenizer.encode("<|bos|>hi", add_bos=True, parse_special=False) == [
        BOS,
        *b"<|bos|>hi",
    ]


def test_tokens_that_the_configuration_calls_special_are_special() -> None:
    text = tokenizer_json(added_tokens=added({"content": "<e>"}, {"content": "<p>"}))

    tokenizer = from_hf(
        text,
        {"eos_token": "<e>", "added_tokens_decoder": {"257": {"content": "<p>", "special": True}}},
        end_ids=[256],
    )

    assert tokenizer.special_ids == {256, 257}
    assert tokenizer.special_texts == ("<e>", "<p>")


def test_end_ids_fall_back_to_the_tokenizer_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tokenizer = from_hf(byte_tokenizer_json(), {"eos_token": "<|eot|>"})

    assert tokenizer.end_ids == {EOT, IM_END}
    assert "names no end-of-turn ids" in caplog.text


def test_truncation_and_padding_of_the_file_are_ignored() -> None:
    text = tokenizer_json(
        truncation={"max_length": 2, "stride": 0, "strategy": "LongestFirst", "direction": "Right"}
    )

    assert len(from_hf(text).encode("abcdef", add_bos=False, parse_special=True)) == 6


def test_a_user_text_becomes_special_by_no_normaliser() -> None:
    text = tokenizer_json(
        normalizer={"type": "NFKC"},
        added_tokens=added({"content": "<|im_end|>", "special": True, "normalized": True}),
    )

    ids = from_hf(text).encode("\uff1c|im_end|>", add_bos=False, parse_special=True)

    assert ids == list(b"<|im_end|>")


def sentencepiece_json(scheme: str) -> str:
    """A vocabulary of a few pieces with Metaspace, as newer Llama conversions have it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), "▁", "a", "b", "▁a"]
    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": False}
    return tokenizer_json(
        added_tokens=added(
            {"content": "<unk>", "special": True},
            {"content": "<s>", "special": True},
            {"content": "</s>", "special": True},
            first_id=0,
        ),
        pre_tokenizer=metaspace,
        decoder=metaspace,
        model={
            "type": "BPE",
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": [["▁", "a"]],
            "byte_fallback": True,
            "unk_token": "<unk>",
            "fuse_unk": True,
        },
    )


@pytest.mark.parametrize(
    ("scheme", "decoded"), [("first", "a a"), ("always", "a a"), ("never", " a a")]
)
def test_the_space_prefix_is_taken_off_as_the_decoder_says(scheme: str, decoded: str) -> None:
    tokenizer = from_hf(sentencepiece_json(scheme))
    piece = tokenizer.id_of("▁a")
    assert piece is not None

    assert tokenizer.decode([piece, piece], skip_special=True) == decoded
    assert tokenizer.token_bytes(piece) == b" a"
    assert tokenizer.token_bytes(3 + 0xF0) == b"\xf0"


def test_masked_text_is_cut_as_the_library_cuts_it() -> None:
    """Only the first text gets the space prefix, with a mask in the text or without."""
    tokenizer = from_hf(sentencepiece_json("first"))

    whole = tokenizer.encode("a</s>a</s>b", add_bos=False, parse_special=True)
    masked = tokenizer.encode_masked("a</s>a</s>b", lambda text: text, add_bos=False)

    assert masked == whole
    assert [tokenizer.piece_of(i) for i in masked] == ["▁a", "</s>", "a", "</s>", "b"]


def test_whole_words_are_joined_by_spaces() -> None:
    text = tokenizer_json(
        added_tokens=added({"content": "<bos>", "special": True}, first_id=0),
        pre_tokenizer={"type": "WhitespaceSplit"},
        decoder={"type": "WordPiece", "prefix": "##", "cleanup": False},
        model={
            "type": "WordLevel",
            "vocab": {"<bos>": 0, "<unk>": 1, "31": 2, "30": 3, "##s": 4},
            "unk_token": "<unk>",
        },
    )
    tokenizer = from_hf(text, {"bos_token": "<bos>"})

    assert tokenizer.encode("31 30", add_bos=True, parse_special=True) == [0, 2, 3]
    assert tokenizer.decode([0, 2, 3, 4], skip_special=True) == "31 30s"
    assert tokenizer.decode([3], skip_special=True, continues=True) == " 30"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "tokenizer.json cannot be read"),
        (
            tokenizer_json(decoder={"type": "BPEDecoder", "suffix": "x"}, pre_tokenizer=None),
            "decoder .BPEDecoder. is not supported",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        from_hf(text)


def test_the_alphabet_maps_every_byte_to_one_printable_character() -> None:
    alphabet = byte_alphabet()

    assert sorted(alphabet.values()) == list(range(256))
    assert (alphabet["Ġ"], alphabet["Ċ"], alphabet["A"]) == (0x20, 0x0A, 0x41)


def test_odd_lists_of_special_tokens_are_passed_over() -> None:
    config = {
        "additional_special_tokens": 5,
        "added_tokens_decoder": {"1": 7, "2": {"special": True, "content": 3}},
        "eos_token": {"content": ["x"]},
    }

    assert from_hf(tokenizer_json(), config).vocab_size >= 256
    assert from_hf(tokenizer_json(), {"added_tokens_decoder": [1]}).vocab_size >= 256


def test_an_id_that_no_vocabulary_has_makes_no_list_of_gigabytes() -> None:
    model = json.loads(tokenizer_json())["model"]
    model["vocab"]["far"] = 2**32 - 1

    with pytest.raises(ModelError, match="the id 4294967295; the largest that is read is 8388607"):
        from_hf(tokenizer_json(model=model))
