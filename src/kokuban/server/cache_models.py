"""The fields by which clients name a session and ask to keep KV, named as OpenAI and Anthropic do.

They are never shown to the chat template: a mark that moves on from request to request must not
change the text in front of it, or nothing would be found in the cache any more.
"""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kokuban.server.parameter import Api
from kokuban.server.parameters import of

DEFAULT_TTL_S = 30 * 60.0
EXTENDED_TTL_S = 24 * 3600.0
EPHEMERAL_TTLS_S = {"5m": 300.0, "1h": 3600.0}


class Strict(BaseModel):
    """The root of all bodies: strict types, unknown fields kept, no number that is none.

    A validator is built when a body is first read, or by `faces.add_faces`: of the 20 classes only
    those that are whole bodies need one, and a start needs none before it is ready.
    """

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False, defer_build=True)
    apis: ClassVar[Api] = Api.BOTH
    """Whose table says what becomes of fields that are not declared."""


class CacheControl(Strict):
    """Anthropic's mark: keep the prompt up to the end of what carries it."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None

    @property
    def ttl_s(self) -> float:
        return EPHEMERAL_TTLS_S[self.ttl or "5m"]


class CacheBreakpoint(Strict):
    """OpenAI's mark; how long is said by the request."""

    mode: Literal["explicit"]


class CacheOptions(Strict):
    """OpenAI's options of a request."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class Marked(Strict):
    """What can carry a mark."""

    cache_control: CacheControl | None = Field(None, exclude=True)
    prompt_cache_breakpoint: CacheBreakpoint | None = Field(None, exclude=True)


class CacheFields(Strict):
    """What both generating routes have in common."""

    prompt_cache_key: str | None = of("prompt_cache_key")
    prompt_cache_options: CacheOptions | None = of("prompt_cache_options")
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = of(
        "prompt_cache_retention"
    )
    cache_control: CacheControl | None = of("cache_control")

    @field_validator("prompt_cache_key")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("holds a character that cannot be printed")
        return value
