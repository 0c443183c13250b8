"""How those are told who wait for a download, or for weights to be packed."""

from typing import Protocol


class Progress(Protocol):
    """Told now and then how far something is; from the thread that called."""

    def __call__(self, what: str, done_bytes: int, total_bytes: int) -> None: ...
