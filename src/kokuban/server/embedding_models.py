"""The body of /v1/embeddings and the answer to it."""

from typing import Annotated, Any, Literal

from msgspec import Struct
from pydantic import Field, field_validator

from kokuban.core.pooling import Pooling
from kokuban.server.cache_models import Strict
from kokuban.server.openai_models import TokenRow, one_kind_of_prompt
from kokuban.server.openai_responses import PromptDetails, Receipt
from kokuban.server.parameters_served import MAX_SALT_LENGTH
from kokuban.server.schema_parts import TokenId

NotEmpty = Annotated[str, Field(json_schema_extra={"minLength": 1})]
Input = str | list[NotEmpty] | list[TokenId] | list[TokenRow]


class EmbeddingRequest(Strict):
    """The body of /v1/embeddings."""

    input: Input = Field(json_schema_extra={"minItems": 1, "minLength": 1})
    """Text or token ids, one or a list. Special tokens that are written in a text count."""

    model: str | None = None
    """The served one where it is left out or empty."""

    encoding_format: Literal["float", "base64"] | None = None
    """base64: of the numbers as float32 in little-endian order."""

    dimensions: int | None = Field(None, ge=1, le=2**31 - 1)
    """Keep the first so many numbers of each vector, before it is scaled."""

    user: str | None = None
    pooling: Pooling | None = None
    """Beyond OpenAI: the last token's hidden state, or the mean over all tokens."""

    normalize: bool | None = None
    """Scale each vector to length 1; true by default."""

    truncate_prompt_tokens: int | None = Field(
        None, ge=-1, le=2**31 - 1, json_schema_extra={"not": {"const": 0}}
    )
    """Keep the last so many tokens of a longer input; -1: as many as the context holds."""

    add_special_tokens: bool | None = None
    priority: int | None = Field(None, ge=-(2**31), le=2**31 - 1)
    cache_salt: str | None = Field(None, min_length=1, max_length=MAX_SALT_LENGTH)

    @field_validator("input", mode="wrap")
    @classmethod
    def _one_kind(cls, value: Any, _handler: Any) -> Any:
        return one_kind_of_prompt(value)

    @field_validator("truncate_prompt_tokens")
    @classmethod
    def _not_zero(cls, value: int | None) -> int | None:
        if value == 0:
            raise ValueError("0 tokens make no vector; use 1 or more, or -1 for a whole context")
        return value


class EmbeddingItem(Struct, frozen=True, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str
    """Text: base64, see the request."""


class EmbeddingUsage(Struct, frozen=True):
    """Tokens of all inputs together, as they were computed."""

    prompt_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    kokuban: Receipt


class EmbeddingList(Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingItem]
    model: str
    usage: EmbeddingUsage
