"""Small model files of every kind, and what `fuzz_models` does to them."""

import json
import random
import shutil
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tools.byte_tokenizer import gguf_metadata as byte_tokenizer_metadata
from tools.tiny_configs import random_weights, variant_config
from tools.tiny_formats import gguf_metadata, gguf_weights, write_hf, write_tiny_gguf

from kokuban.core.model_config import ModelConfig
from kokuban.weights.gguf import ARRAY, SCALARS, STRING
from kokuban.weights.gguf_write import WriteValue, write_gguf
from kokuban.weights.mapped import WeightTensor
from kokuban.weights.quant_types import TensorType
from kokuban.weights.quantize import quantize

GGUF_KINDS = ("flip", "field", "field", "field", "text", "cut", "splice", "key", "data")
HF_KINDS = (*("header", "entry") * 3, "length", "cut", "config", "side")

NUMBERS = (
    0, 1, 2, 3, 7, 8, 9, 31, 32, 63, 64, 65, 255, 256, 2**15, 2**16, 2**20, 2**24, 2**27, 2**30,
    2**30 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**56, 2**61, 2**62, 2**63 - 1, 2**63,
    2**64 - 8, 2**64 - 1,
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-45, 1e-38, 1e-9, 1e9, 3e38, float("inf"), float("-inf"),
    float("nan"),
)  # fmt: skip
JSON_TEXTS = (
    "null", "true", "false", "0", "1", "-1", "2", "3", "64", "65", "1.0", "0.5", "1e-320", "1e308",
    "1e400", "-1e400", "NaN", "Infinity", str(2**31), str(2**53), str(2**63), str(2**64), "9" * 400,
    "9" * 5000, '""', '"x"', '"\\ud83d"', '"\\u0000"', '"F32"', '"I64"', '"llama"', '"yarn"', "[]",
    "{}", "[[]]", "[1]", "[0]", "[-1]", "[null]", "[1,2,3]", '["x"]', '{"a":1}', "[" * 3000,
    "[64,64]", "[" + "1," * 40 + "1]", '{"rope_type":"yarn","factor":1e300}',
    '{"rope_type":"longrope","short_factor":[1],"long_factor":[1]}', '{"rope_type":[]}',
    '{"type":"linear","factor":1e-310}', '{"rope_type":"llama3","factor":8}',
)  # fmt: skip
ADDED_KEYS = (
    "rope_scaling", "rope_parameters", "layer_types", "text_config", "chat_template",
    "eos_token_id", "sliding_window", "head_dim", "partial_rotary_factor", "quantization_config",
    "added_tokens_decoder", "query_pre_attn_scalar",
)  # fmt: skip
TEXTS = (b"\xff\xfe", b"", b"\x00", "é\u0301".encode(), b"a" * 300, b"blk.0.attn_q.weight", b"\n{{")


def make_bases(directory: Path) -> list[Path]:
    """Write one good model of each kind, GGUF files first; names tell what they are."""
    ggufs = directory / "gguf"
    simple = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
    wide = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k")
    others = ("llama_llama3", "llama_yarn", "qwen2", "qwen3", "phi3_longrope", "gemma3")
    made = [_gguf(ggufs, "llama", dtype) for dtype in simple]
    made += [_gguf(ggufs, "llama", dtype, width=256) for dtype in wide]
    made += [_gguf(ggufs, variant, "q8_0") for variant in others]
    made.append(_sentencepiece(ggufs / "spiece.gguf"))
    for variant, dtype in (
        ("llama", "f32"), ("llama_linear", "f16"), ("llama_llama3", "bf16"), ("mistral", "f32"),
        ("qwen2", "f32"), ("qwen3", "bf16"), ("phi3_longrope", "f32"), ("gemma3", "f16"),
    ):  # fmt: skip
        config = _small(variant)
        weights = random_weights(config)
        made.append(write_hf(directory / "hf" / variant, config, weights, dtype=dtype))
    made.append(_sharded(directory / "hf" / "sharded", made[-1]))
    return made


def _small(variant: str, width: int = 64) -> ModelConfig:
    """A variant with matrices as small as its types allow."""
    config = replace(variant_config(variant), hidden_size=width, intermediate_size=width)
    layers = 2 if not config.window_layers else len(config.window_layers[:2])
    return replace(
        config, num_layers=layers, window_layers=config.window_layers[-layers:], max_positions=128
    )


def _gguf(directory: Path, variant: str, dtype: str, width: int = 64) -> Path:
    config = _small(variant, width)
    path = directory / f"{variant}-{dtype}.gguf"
    return write_tiny_gguf(path, config, random_weights(config), quant=dtype)


def _sentencepiece(path: Path) -> Path:
    """A file with the other kind of vocabulary: pieces with scores."""
    config = _small("llama")
    tensors = [
        WeightTensor(name, TensorType.F32, array.shape, quantize(array, TensorType.F32))
        for name, array in gguf_weights(config, random_weights(config)).items()
    ]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = ["▁", "a", "b", "ab", "▁ab", "abab", "é"]
    pieces = ["<unk>", "<s>", "</s>", *bytes_, *words]
    pieces += [f"w{index}" for index in range(config.vocab_size - len(pieces))]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (config.vocab_size - 259)
    keys: dict[str, WriteValue] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.scores": [float(-index) for index in range(len(pieces))],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.chat_template": str(byte_tokenizer_metadata(320)["tokenizer.chat_template"]),
    }
    write_gguf(path, gguf_metadata(config) | keys, tensors)
    return path


def _sharded(directory: Path, whole: Path) -> Path:
    """The model of another directory in two files with an index."""
    shutil.copytree(whole, directory)
    source = directory / "model.safetensors"
    raw = source.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8 : 8 + length]), raw[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        offset, entries, pieces = 0, {}, []
        for name in part:
            begin, end = header[name]["data_offsets"]
            entries[name] = header[name] | {"data_offsets": [offset, offset + end - begin]}
            pieces.append(data[begin:end])
            offset += end - begin
            weight_map[name] = file
        text = json.dumps(entries).encode()
        (directory / file).write_bytes(len(text).to_bytes(8, "little") + text + b"".join(pieces))
    source.unlink()
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    return directory


class Place(NamedTuple):
    """A field in a GGUF header."""

    at: int
    code: str
    """For `struct`; "s": a text, without its length."""

    size: int
    what: str


def places(data: bytes) -> tuple[list[Place], int]:
    """Every field of a good file's header, and where the header ends."""
    found: list[Place] = []
    at = 0

    def number(code: str, what: str) -> Any:
        nonlocal at
        size = struct.calcsize("<" + code)
        found.append(Place(at, code, size, what))
        at += size
        return struct.unpack_from("<" + code, data, at - size)[0]

    def text(what: str) -> None:
        nonlocal at
        size = number("Q", f"length of {what}")
        found.append(Place(at, "s", size, what))
        at += size

    def value(kind: int) -> None:
        if kind == STRING:
            text("value")
        elif kind == ARRAY:
            inner, count = number("I", "element type"), number("Q", "array length")
            for _ in range(count):
                value(inner)
        else:
            number(SCALARS[kind][1], "value")

    at = 4
    number("I", "version")
    num_tensors, num_keys = number("Q", "tensors"), number("Q", "keys")
    for _ in range(num_keys):
        text("key")
        value(number("I", "value type"))
    for _ in range(num_tensors):
        text("name")
        for _ in range(number("I", "dimensions")):
            number("Q", "dimension")
        number("I", "type")
        number("Q", "offset")
    return found, at


def mutate_gguf(rng: random.Random, data: bytes, kind: str) -> bytes:
    """A file with something wrong in it."""
    fields, end = places(data)
    changed = bytearray(data)
    if kind == "flip":
        for _ in range(rng.randint(1, 8)):
            changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
    elif kind == "field":
        for _ in range(rng.choice((1, 1, 1, 2))):
            _set_number(rng, changed, _rare(rng, [f for f in fields if f.code != "s"]))
    elif kind == "text":
        return _with_text(rng, data, [f for f in fields if f.code == "s"])
    elif kind == "cut":
        del changed[rng.choice((rng.randrange(end), rng.randrange(len(data)), rng.randrange(32))) :]
    elif kind == "splice":
        at = rng.randrange(end)
        changed[at : at + rng.choice((0, 1, 4, 8, 40))] = rng.randbytes(rng.choice((0, 1, 8, 32)))
    elif kind == "key":
        _swap(rng, changed, fields)
    else:
        for _ in range(rng.randint(1, 2000)):
            changed[rng.randrange(end, len(data))] = rng.choice((0, 0x7F, 0xFF, rng.randrange(256)))
    return bytes(changed)


def _rare(rng: random.Random, fields: list[Place]) -> Place:
    """A field, each kind as likely: most are lengths of tokens."""
    kind = rng.choice(sorted({field.what for field in fields}))
    return rng.choice([field for field in fields if field.what == kind])


def _set_number(rng: random.Random, data: bytearray, place: Place) -> None:
    old = struct.unpack_from("<" + place.code, data, place.at)[0]
    if place.code in "fd":
        new: Any = rng.choice((*FLOATS, old * 2))
    elif place.code == "?":
        new = rng.randrange(256)
        data[place.at] = new
        return
    else:
        bits = 8 * place.size
        new = rng.choice((*NUMBERS, old + 1, old - 1, old * 2, -old, rng.getrandbits(bits)))
        new %= 2**bits
        data[place.at : place.at + place.size] = int(new).to_bytes(place.size, "little")
        return
    try:
        struct.pack_into("<" + place.code, data, place.at, new)
    except OverflowError:  # Twice the largest float.
        struct.pack_into("<" + place.code, data, place.at, float("inf"))


def _with_text(rng: random.Random, data: bytes, fields: list[Place]) -> bytes:
    place = _rare(rng, fields)
    other = _rare(rng, fields)
    text = rng.choice((*TEXTS, data[other.at : other.at + other.size], rng.randbytes(5)))
    start = place.at - 8
    return data[:start] + struct.pack("<Q", len(text)) + text + data[place.at + place.size :]


def _swap(rng: random.Random, data: bytearray, fields: list[Place]) -> None:
    """Give one number the value of another of its kind: tensors overlap, types differ."""
    first = _rare(rng, [field for field in fields if field.code in "IQifB"])
    alike = [field for field in fields if field.what == first.what and field.size == first.size]
    second = rng.choice(alike)
    data[first.at : first.at + first.size] = data[second.at : second.at + second.size]


def mutate_directory(rng: random.Random, directory: Path, kind: str) -> None:
    """Spoil one file of a copied Hugging Face directory."""
    if kind == "config":
        _spoil_json(rng, directory / "config.json")
        return
    if kind == "side":
        names = [
            "tokenizer.json", "tokenizer_config.json", "generation_config.json", "config.json",
            "model.safetensors.index.json",
        ]  # fmt: skip
        _spoil_json(rng, rng.choice([p for n in names if (p := directory / n).exists()]))
        return
    path = rng.choice(sorted(directory.glob("*.safetensors")))
    path.write_bytes(mutate_safetensors(rng, path.read_bytes(), kind))


def mutate_safetensors(rng: random.Random, raw: bytes, kind: str) -> bytes:
    """A file with something wrong in it."""
    length = int.from_bytes(raw[:8], "little")
    text, data = raw[8 : 8 + length], raw[8 + length :]
    if kind == "length":
        new = rng.choice((*NUMBERS, length + 1, length - 1, len(raw), len(raw) - 8))
        return (new % 2**64).to_bytes(8, "little") + raw[8:]
    if kind == "cut":
        return raw[
            : rng.choice((rng.randrange(12), rng.randrange(length), rng.randrange(len(raw))))
        ]
    text = _spoiled_bytes(rng, text) if kind == "header" else _spoiled_entry(rng, text)
    return len(text).to_bytes(8, "little") + text + data


def _spoiled_bytes(rng: random.Random, text: bytes) -> bytes:
    changed = bytearray(text)
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(changed) + 1)
        how = rng.randrange(4)
        if how == 0:
            changed[at : at + 1] = rng.randbytes(1)
        elif how == 1:
            changed[at : at + rng.randint(1, 9)] = b""
        elif how == 2:
            changed[at:at] = rng.choice((b"\xff", b"9", b"0", b'"', b"[" * 3000, b"-", b"e9", b","))
        else:
            changed[at:at] = changed[rng.randrange(len(changed)) :][:30]
    return bytes(changed)


def _spoiled_entry(rng: random.Random, text: bytes) -> bytes:
    """One tensor's entry, or the whole of it, with values that JSON allows and the format not."""
    header: dict[str, Any] = json.loads(text)
    names = [name for name in header if name != "__metadata__"]
    name, other = rng.choice(names), rng.choice(names)
    how = rng.randrange(6)
    if how == 0:
        header[name] = header[other]
    elif how == 1:
        header[name]["data_offsets"] = rng.choice((header[other]["data_offsets"], [0, 0], [8, 4]))
    elif how == 2:
        header[rng.choice(("x", "", "é", other + "x", "__metadata__"))] = header.pop(name)
    elif how == 3:
        doubled = json.dumps(header)[:-1] + "," + json.dumps(name) + ":{}}"
        return doubled.encode()
    else:
        key = rng.choice(("dtype", "shape", "data_offsets"))
        return _replaced(header, (name, key), rng.choice(JSON_TEXTS)).encode()
    return json.dumps(header).encode()


_HOLE = "\u2400hole\u2400"


def _replaced(value: Any, path: tuple[Any, ...], new: str) -> str:
    """JSON text with one value replaced by a text that may be no JSON."""
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = _HOLE
    return json.dumps(value, ensure_ascii=False).replace(f'"{_HOLE}"', new)


def _spoil_json(rng: random.Random, path: Path) -> None:
    if rng.random() < 0.2:
        path.write_bytes(_spoiled_bytes(rng, path.read_bytes()))
        return
    value = json.loads(path.read_bytes())
    if rng.random() < 0.2 and isinstance(value, dict):
        key = rng.choice(ADDED_KEYS)
        value.setdefault(key, None)
        chosen: tuple[Any, ...] = (key,)
    else:
        chosen = rng.choice(list(_few_paths(value)))
    if rng.random() < 0.15:
        inner = value
        for key in chosen[:-1]:
            inner = inner[key]
        del inner[chosen[-1]]
        path.write_text(json.dumps(value), "utf-8")
        return
    text = _replaced(value, chosen, rng.choice(JSON_TEXTS))
    path.write_text(text, "utf-8")


def _few_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where values stand; of long lists and mappings the first few."""
    if path:
        yield path
    if isinstance(value, Mapping):
        for key in list(value)[:40]:
            yield from _few_paths(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(min(len(value), 4)):
            yield from _few_paths(value[index], (*path, index))


def spoil(seed: int, bases: list[Path], target: Path) -> tuple[str, Path]:
    """Write the bad model of a seed; even seeds are GGUF files, odd ones directories.

    Returns:
        What was done, and where the model lies.
    """
    rng = random.Random(seed)
    if seed % 2 == 0:
        base = rng.choice([base for base in bases if base.suffix == ".gguf"])
        kind = rng.choice(GGUF_KINDS)
        path = target / "model.gguf"
        path.write_bytes(mutate_gguf(rng, base.read_bytes(), kind))
        return f"gguf {kind}", path
    base = rng.choice([base for base in bases if base.suffix != ".gguf"])
    kind = rng.choice(HF_KINDS)
    path = target / "model"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(base, path)
    mutate_directory(rng, path, kind)
    return f"safetensors {kind}", path
