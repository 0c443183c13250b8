"""Vectors as the body of /v1/embeddings."""

from binascii import b2a_base64
from typing import Any

import msgspec

from kokuban.engine.embedding import floats_of
from kokuban.engine.generation import TextDelta
from kokuban.server.embedding_models import EmbeddingItem, EmbeddingList, EmbeddingUsage
from kokuban.server.openai_responses import encode
from kokuban.server.record import Record


class EmbeddingForm:
    """Each vector is encoded when it comes: all at once would hold the event loop up.

    Args:
        model: the served name.
        record: counts the tokens.
        base64: whether the numbers are sent as they are, in base64.
    """

    def __init__(self, model: str, record: Record, *, base64: bool) -> None:
        self._model = model
        self._record = record
        self._base64 = base64
        self._items: dict[int, bytes] = {}

    def add(self, delta: TextDelta) -> None:
        assert delta.embedding is not None, "an input ended without a vector"
        vector: str | list[float]
        if self._base64:
            vector = b2a_base64(delta.embedding, newline=False).decode()
        else:
            vector = floats_of(delta.embedding)
        self._items[delta.choice] = encode(EmbeddingItem(index=delta.choice, embedding=vector))

    def body(self) -> bytes:
        """The vectors in the order of the inputs."""
        counts = self._record.usage_body()
        usage = EmbeddingUsage(
            counts.prompt_tokens,
            counts.total_tokens,
            counts.prompt_tokens_details,
            counts.kokuban,
        )
        ready: list[Any] = [msgspec.Raw(self._items[index]) for index in sorted(self._items)]
        return encode(EmbeddingList(data=ready, model=self._model, usage=usage))
