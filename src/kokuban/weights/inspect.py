"""What a model's files hold, as numbers that `kokuban inspect` prints."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from kokuban.core.config import kv_head_bytes
from kokuban.core.errors import ModelError
from kokuban.core.model_config import ModelConfig
from kokuban.weights.quant_types import TensorType
from kokuban.weights.source import ModelSource
from kokuban.weights.tokenizer_source import TokenizerSource


@dataclass(frozen=True, slots=True)
class TypeUse:
    """How much of a model is stored in one type."""

    num_tensors: int
    num_elements: int
    num_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """The facts about one model."""

    path: str
    format: Literal["gguf", "safetensors"]
    config: ModelConfig
    num_parameters: int
    """Elements of all tensors; tied embeddings count once."""

    num_bytes: int
    """Bytes of all tensors."""

    types: Mapping[TensorType, TypeUse]
    """Storage types in use, the one with most bytes first."""

    tokenizer: str
    """Kind of the tokenizer, such as "gpt2 (qwen2)", or why there is none."""

    num_tokens: int | None
    """Entries of the tokenizer's vocabulary; None where only the tokenizer itself knows."""

    chat_template: bool
    named_templates: tuple[str, ...]
    end_token_ids: tuple[int, ...]
    kv_bytes_per_token: int
    """K and V of one token in all layers, in bf16."""

    digest: str

    @property
    def bits_per_weight(self) -> float:
        """Average over all tensors, scales included."""
        return 8 * self.num_bytes / self.num_parameters


def describe(source: ModelSource) -> ModelDescription:
    """Collect the facts. Reads headers and samples, not the weights.

    Raises:
        ModelError: the architecture is not supported, or its settings are impossible.
    """
    config = source.config
    types = _types(source)
    tokenizer, label = _tokenizer(source)
    return ModelDescription(
        path=str(source.path),
        format=source.format,
        config=config,
        num_parameters=sum(use.num_elements for use in types.values()),
        num_bytes=sum(use.num_bytes for use in types.values()),
        types=types,
        tokenizer=label,
        num_tokens=_num_tokens(tokenizer),
        chat_template=tokenizer is not None and tokenizer.chat_template is not None,
        named_templates=tuple(sorted(tokenizer.named_templates)) if tokenizer else (),
        end_token_ids=tuple(sorted(tokenizer.end_token_ids)) if tokenizer else (),
        kv_bytes_per_token=(
            config.num_layers * 2 * config.num_kv_heads * kv_head_bytes("bf16", config.head_dim)
        ),
        digest=source.digest(),
    )


def _types(source: ModelSource) -> dict[TensorType, TypeUse]:
    uses: dict[TensorType, TypeUse] = {}
    for info in source.infos():
        before = uses.get(info.type, TypeUse(0, 0, 0))
        uses[info.type] = TypeUse(
            before.num_tensors + 1,
            before.num_elements + int(np.prod(info.shape, dtype=np.int64)),
            before.num_bytes + info.num_bytes,
        )
    return dict(sorted(uses.items(), key=lambda item: -item[1].num_bytes))


def _tokenizer(source: ModelSource) -> tuple[TokenizerSource | None, str]:
    """The tokenizer's files and what to call it; a missing tokenizer is a fact, not an error."""
    try:
        tokenizer = source.tokenizer_source()
    except ModelError as error:
        return None, str(error)
    if tokenizer.metadata is None:
        return tokenizer, str(tokenizer.tokenizer_config.get("tokenizer_class", "tokenizer.json"))
    kind = tokenizer.metadata["tokenizer.ggml.model"]
    pre = tokenizer.metadata.get("tokenizer.ggml.pre")
    return tokenizer, f"{kind} ({pre})" if pre else str(kind)


def _num_tokens(tokenizer: TokenizerSource | None) -> int | None:
    if tokenizer is None or tokenizer.metadata is None:
        return None
    tokens = tokenizer.metadata["tokenizer.ggml.tokens"]
    assert not isinstance(tokens, int | float)
    return len(tokens)
