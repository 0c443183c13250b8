"""The fields that say what an answer must look like. See `server.parameters`."""

from kokuban.server.parameter import Parameter
from kokuban.server.schema_parts import NOT_BLANK, NULL, any_of, at_most_one, has

_SCHEMA = "object or boolean or string"

FORM = (
    Parameter(
        name="response_format",
        kind="object",
        meaning="The form of the answer: `text`, `json_object`, or `json_schema` with a schema. Of "
        "all fields of this kind a request has one at most; see `docs/structured-output.md`.",
    ),
    Parameter(
        name="structured_outputs",
        kind="object",
        meaning="Exactly one of `json`, `json_object`, `regex`, `choice` and `grammar`.",
        origin="vLLM",
    ),
    Parameter(
        name="guided_json",
        kind=_SCHEMA,
        meaning="A JSON schema, or its text.",
        origin="vLLM",
    ),
    Parameter(
        name="guided_regex",
        kind="string",
        shape={"minLength": 1},
        meaning="A regular expression that matches the whole answer; without look-around.",
        origin="vLLM",
    ),
    Parameter(
        name="guided_choice",
        kind="array of strings",
        shape={"minItems": 1},
        meaning="The answer is one of these texts.",
        origin="vLLM",
    ),
    Parameter(
        name="guided_grammar",
        kind="string",
        shape={"pattern": NOT_BLANK},
        meaning="As `grammar`.",
        origin="vLLM",
    ),
    Parameter(
        name="json_schema",
        kind=_SCHEMA,
        meaning="As `guided_json`.",
        origin="llama.cpp",
    ),
    Parameter(
        name="grammar",
        kind="string",
        shape={"pattern": NOT_BLANK},
        meaning="A grammar in llguidance's Lark (with a rule `start:`) or in GBNF (`root ::=`).",
        origin="llama.cpp",
    ),
    Parameter(
        name="regex",
        kind="string",
        shape={"minLength": 1},
        meaning="As `guided_regex`.",
        origin="SGLang",
    ),
    Parameter(
        name="choice",
        kind="array of strings",
        shape={"minItems": 1},
        meaning="As `guided_choice`.",
        origin="vLLM",
    ),
)

ONE_FORM = at_most_one(
    {
        parameter.name: any_of(NULL, has(type={"const": "text"}))
        if parameter.name == "response_format"
        else NULL
        for parameter in FORM
    }
)
"""The rule that a body asks for one form at most."""
