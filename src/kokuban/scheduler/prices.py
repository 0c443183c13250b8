"""What steps cost, and bringing the KV of a request back: computed again, or up from below."""

from typing import Protocol

from kokuban.kvcache.eviction import Worth
from kokuban.plan.cost import CostModel


class Prices(Protocol):
    """Seconds, or any other unit as long as it is one for all three."""

    def recompute_s(self, start: int, num_tokens: int) -> float:
        """Computing tokens of one request, the first of them at position `start`."""
        ...

    def restore_s(self, num_blocks: int, num_disk_blocks: int = 0) -> float:
        """Bringing blocks up into the pool, some of them from disk."""
        ...

    def store_s(self, num_blocks: int) -> float:
        """Copying blocks down to host memory."""
        ...

    def decode_s(self, context_tokens: int, batch_size: int, num_drafts: int) -> float:
        """A step in which requests of this context compute one token each, and drafts beside."""
        ...


class FreeMoves:
    """Prices without a cost model: a token costs 1 to compute, and moving blocks nothing."""

    def recompute_s(self, start: int, num_tokens: int) -> float:
        del start
        return float(num_tokens)

    def restore_s(self, num_blocks: int, num_disk_blocks: int = 0) -> float:
        del num_blocks, num_disk_blocks
        return 0.0

    def store_s(self, num_blocks: int) -> float:
        del num_blocks
        return 0.0

    def decode_s(self, context_tokens: int, batch_size: int, num_drafts: int) -> float:
        del context_tokens, batch_size, num_drafts
        return 1.0


class ModelPrices:
    """Prices of a cost model.

    Args:
        block_bytes: of one block of the pool.
    """

    def __init__(self, model: CostModel, block_bytes: int) -> None:
        self._model = model
        self._block_bytes = block_bytes

    def recompute_s(self, start: int, num_tokens: int) -> float:
        return self._model.prefill_s(start, num_tokens)

    def restore_s(self, num_blocks: int, num_disk_blocks: int = 0) -> float:
        in_ram = (num_blocks - num_disk_blocks) * self._block_bytes
        on_disk = num_disk_blocks * self._block_bytes
        return self._model.restore_s(in_ram, "ram") + self._model.restore_s(on_disk, "disk")

    def store_s(self, num_blocks: int) -> float:
        return self._model.store_s(num_blocks * self._block_bytes, "ram")

    def decode_s(self, context_tokens: int, batch_size: int, num_drafts: int) -> float:
        return self._model.decode_s(context_tokens, batch_size, num_drafts)


def move_s(prices: Prices, num_blocks: int) -> float:
    """Copying blocks down to host memory, and up again when they are wanted."""
    return prices.store_s(num_blocks) + prices.restore_s(num_blocks)


def block_worth(prices: Prices, block_size: int) -> Worth:
    """What a block costs to compute again, drawn through two of them."""
    far = 64
    first, later = (prices.recompute_s(at * block_size, block_size) for at in (0, far))
    return Worth(first, (later - first) / far)
