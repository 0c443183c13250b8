"""vLLM's `RemoteOpenAIServer` for a server that runs already: `run.py` makes it their utils."""

from pathlib import Path
from typing import Any, Self

import anthropic
import openai

VLLM_PATH = Path("nowhere")
ROCM_EXTRA_ARGS: list[str] = []
REQUEST_S = 120


class RemoteOpenAIServer:
    """What their tests start a server with; here it is there, whatever options they want."""

    DUMMY_API_KEY = "token-abc123"
    show_hidden_metrics = False
    url_root = ""
    """Set by the conftest."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        self.host, _, port = self.url_root.removeprefix("http://").partition(":")
        self.port = int(port)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        pass

    def url_for(self, *parts: str) -> str:
        return "/".join((self.url_root, *parts))

    def get_client(self, **options: Any) -> openai.OpenAI:
        return openai.OpenAI(**self._options("v1", options))

    def get_async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(**self._options("v1", options))

    def get_client_anthropic(self, **options: Any) -> anthropic.Anthropic:
        return anthropic.Anthropic(**self._options("", options))

    def get_async_client_anthropic(self, **options: Any) -> anthropic.AsyncAnthropic:
        return anthropic.AsyncAnthropic(**self._options("", options))

    def _options(self, path: str, given: dict[str, Any]) -> dict[str, Any]:
        return {
            "base_url": self.url_for(path), "api_key": self.DUMMY_API_KEY, "max_retries": 0,
            "timeout": REQUEST_S, **given,
        }  # fmt: skip


def __getattr__(name: str) -> Any:
    """Decorators that choose tests by the machine: all are taken."""
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *_arguments, **_options: lambda test: test
