"""A loaded model that runs, wherever it does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kokuban.engine.client import OwnedClient
from kokuban.text.chat import ChatTemplate
from kokuban.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from kokuban.plan.cost import CostModel


@dataclass(frozen=True, slots=True)
class Engine:
    """The engine's client with the text side of its model.

    Made by `build.build_engine` (a thread of this process) or `process.open.open_engine_process`.
    """

    client: OwnedClient
    tokenizer: Tokenizer
    chat_template: ChatTemplate
    end_token_ids: frozenset[int]
    cost: "CostModel | None" = None
    """What its steps cost, without those of a draft model; None where it runs in another process.
    """

    def encode_chat(self, messages: Sequence[Mapping[str, Any]], **template: Any) -> list[int]:
        """Token ids of a conversation, with the header of the answer."""
        return self.chat_template.encode_chat(messages, **template)

    def close(self) -> None:
        """Stop after the step that runs, and give memory and threads back."""
        self.client.close()
