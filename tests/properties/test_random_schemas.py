"""Random schemas, random texts that their masks allow: each that ends is valid."""

import json
import random
from typing import Any

import jsonschema
import numpy as np
import pytest
from tests.fakes_text import EOT, byte_tokenizer

from kokuban.core.errors import RequestError
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.sampling.grammar import CompiledGrammar, GrammarCompiler
from kokuban.text.grammar import json_schema_grammar

COMPILER = GrammarCompiler(byte_tokenizer(), [EOT], 256 + 4)
NAMES = ("a", "ab", "é", 'q"t')
PATTERNS = ("^a", "b$", "^[a-c]*$", r"\d", r"^\w+$", "a|b", "^.{2}$", "^[^x]*$")
FORMATS = ("date", "uuid", "ipv4", "ipv6", "email", "uri")
MAX_BYTES = 400


class Schemas:
    """Draws schemas of what is supported, and of some that is not."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def draw(self, depth: int = 3) -> Any:
        pick = self._random.choice
        kinds = ["string", "integer", "number", "null", "boolean", "const"]
        kind = pick([*kinds, "array", "object", "union"] if depth else kinds)
        if kind == "const":
            return {"enum": [self._value() for _ in range(self._random.randint(1, 3))]}
        if kind == "union":
            keyword = pick(["anyOf", "allOf", "oneOf"])
            return {keyword: [self.draw(depth - 1) for _ in range(self._random.randint(1, 3))]}
        types: Any = kind if self._maybe(0.8) or kind == "null" else [kind, "null"]
        more = getattr(self, f"_{kind}", None)
        return {"type": types, **(more(depth) if more else {})}

    def _maybe(self, share: float) -> bool:
        return self._random.random() < share

    def _value(self) -> Any:
        return self._random.choice([None, True, -3, 1.5, "", "é😀", 'q"\\', [1, "a"], {"a": 0}])

    def _string(self, _: int) -> dict[str, Any]:
        low = self._random.randint(0, 3)
        made: dict[str, Any] = {"minLength": low, "maxLength": low + self._random.randint(0, 5)}
        if self._maybe(0.3):
            made["pattern"] = self._random.choice(PATTERNS)
        if self._maybe(0.1):
            return {"format": self._random.choice(FORMATS)}
        return made

    def _integer(self, _: int) -> dict[str, Any]:
        low = self._random.randint(-20, 20)
        made = {"minimum": low, "exclusiveMaximum": low + self._random.randint(1, 99)}
        return {**made, "multipleOf": 3} if self._maybe(0.3) else made

    def _number(self, _: int) -> dict[str, Any]:
        low = round(self._random.uniform(-5, 5), 2)
        made = {"exclusiveMinimum": low, "maximum": low + 3.5}
        return {**made, "multipleOf": 0.25} if self._maybe(0.3) else made

    def _array(self, depth: int) -> dict[str, Any]:
        low = self._random.randint(0, 2)
        made: dict[str, Any] = {"minItems": low, "maxItems": low + self._random.randint(0, 2)}
        if self._maybe(0.8):
            made["items"] = self.draw(depth - 1)
        if self._maybe(0.3):
            made["prefixItems"] = [self.draw(depth - 1)]
        return made

    def _object(self, depth: int) -> dict[str, Any]:
        names = self._random.sample(NAMES, self._random.randint(0, 3))
        made: dict[str, Any] = {"properties": {name: self.draw(depth - 1) for name in names}}
        made["required"] = self._random.sample(NAMES, self._random.randint(0, 2))
        if self._maybe(0.6):
            made["additionalProperties"] = self.draw(depth - 1) if self._maybe(0.4) else False
        if self._maybe(0.2):
            made["patternProperties"] = {self._random.choice(PATTERNS): self.draw(depth - 1)}
        if self._maybe(0.2):
            made["maxProperties"] = self._random.randint(0, 3)
        return made


def text_of(grammar: CompiledGrammar, draw: random.Random) -> str | None:
    """A random text that the masks allow; None: it has not ended after MAX_BYTES."""
    request = Request(id=RequestId("r"), prompt_token_ids=(1,), params=SamplingParams())
    constraint = grammar.begin(request)
    mask, text = np.zeros((1, constraint.width), np.uint32), bytearray()
    while len(text) < MAX_BYTES:
        constraint.fill(mask)
        ids = np.flatnonzero(np.unpackbits(mask[0].view(np.uint8), bitorder="little")).tolist()
        assert ids, f"nothing may follow {bytes(text)!r}: {constraint.error}"
        if EOT in ids and (len(ids) == 1 or draw.random() < 0.5 or len(text) > 150):
            return text.decode()
        bytes_ = [token for token in ids if token < 256]
        closing = 6.0 if len(text) > 60 else 1.5
        weights = [closing if byte in b'}]",:' else 0.05 if byte in b" \t\r\n" else 1.0
                   for byte in bytes_]  # fmt: skip
        [byte] = draw.choices(bytes_, weights)
        text.append(byte)
        constraint.append(byte)
    return None


@pytest.mark.parametrize("seed", range(4))
def test_every_text_that_ends_is_valid(seed: int) -> None:
    """100 % of finished outputs."""
    schemas, draw = Schemas(seed), random.Random(seed)
    num_valid = 0
    for _ in range(60):
        schema = schemas.draw()
        try:
            grammar = COMPILER.compile(json_schema_grammar(schema))
        except RequestError:
            continue
        for _ in range(3):
            text = text_of(grammar, draw)
            if text is not None:
                jsonschema.validate(
                    json.loads(text), schema, format_checker=jsonschema.FormatChecker()
                )
                num_valid += 1
    assert num_valid > 100
