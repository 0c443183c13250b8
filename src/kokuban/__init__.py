"""Kokuban: an LLM inference engine and server that shows its work."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kokuban.core.pooling import PoolingParams
    from kokuban.core.sampling_params import SamplingParams
    from kokuban.engine.llm import LLM

__all__ = ["LLM", "PoolingParams", "SamplingParams"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Load the public names when they are first used: `kokuban --help` needs none of them."""
    if name == "LLM":
        from kokuban.engine.llm import LLM

        return LLM
    if name == "PoolingParams":
        from kokuban.core.pooling import PoolingParams

        return PoolingParams
    if name == "SamplingParams":
        from kokuban.core.sampling_params import SamplingParams

        return SamplingParams
    raise AttributeError(f"module 'kokuban' has no attribute {name!r}")
