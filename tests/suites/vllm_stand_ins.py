"""Stands in for what vLLM's tests import and hardly use: `run.py` makes it their conftest.

Instead of a tokenizer of transformers they get one that asks the server: what they count with it
must agree with the answers, which is less than they ask of it.
"""

import base64
import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Sequence
from typing import Any
from unittest.mock import MagicMock

import pytest
import requests
from tests.utils import RemoteOpenAIServer  # Ours, in their place.

ROOTS = frozenset(
    {
        "PIL", "datasets", "fastapi", "huggingface_hub", "librosa", "mteb", "openai_harmony",
        "soundfile", "torch", "transformers", "vllm",
    }
)  # fmt: skip
MODULES = (
    "tests.conftest", "tests.models", "tests.models.language", "tests.models.language.pooling",
    "tests.models.language.pooling.embed_utils", "tests.models.utils",
)  # fmt: skip


class ServersTokenizer:
    """The tokenizer of the server."""

    all_special_ids = (0, 1, 2)
    bos_token_id = 1
    eos_token_id = 2

    def encode(self, text: str, add_special_tokens: bool = True, **_more: Any) -> list[int]:
        return self._ids({"prompt": text, "add_special_tokens": add_special_tokens})

    def __call__(self, text: str | list[str], **more: Any) -> types.SimpleNamespace:
        ids = [self.encode(t, **more) for t in text] if isinstance(text, list) else None
        return types.SimpleNamespace(
            input_ids=self.encode(str(text), **more) if ids is None else ids
        )

    def decode(self, ids: int | Sequence[int], **_more: Any) -> str:
        tokens = [ids] if isinstance(ids, int) else list(ids)
        text: str = self._ask("detokenize", {"tokens": tokens})["prompt"]
        return text

    def convert_ids_to_tokens(self, ids: Sequence[int], **_more: Any) -> list[str]:
        return [self.decode(token_id) for token_id in ids]

    def apply_chat_template(
        self, messages: Any = None, *, conversation: Any = None, tokenize: bool = True, **more: Any
    ) -> Any:
        names = ("add_generation_prompt", "continue_final_message", "tools")
        given = {name: more[name] for name in names if more.get(name) is not None}
        body = {"messages": messages or conversation, "add_generation_prompt": False, **given}
        return self._ids(body) if tokenize else self._ask("apply-template", body)["prompt"]

    def _ids(self, body: dict[str, Any]) -> list[int]:
        ids: list[int] = self._ask("tokenize", body)["tokens"]
        return ids

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = f"{RemoteOpenAIServer.url_root}/{path}"
        answer: dict[str, Any] = requests.post(url, json=body, timeout=60).json()
        return answer


class StandIn(types.ModuleType):
    """A module that has every name."""

    __path__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "get_tokenizer":
            return lambda *_arguments, **_options: ServersTokenizer()
        if name == "AutoTokenizer":
            return types.SimpleNamespace(from_pretrained=lambda *_a, **_o: ServersTokenizer())
        if name == "VLLMValidationError":
            return type(name, (Exception,), {})
        made = MagicMock(name=name)
        made.is_rocm.return_value = False
        return made


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds a stand-in for every module below `ROOTS`."""

    def find_spec(self, name: str, *_where: Any) -> importlib.machinery.ModuleSpec | None:
        if name.split(".")[0] not in ROOTS:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return StandIn(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


sys.meta_path.insert(0, Finder())
sys.modules["pybase64"] = base64
sys.modules.update({name: StandIn(name) for name in MODULES})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--target", help="URL of the server")


def pytest_configure(config: pytest.Config) -> None:
    RemoteOpenAIServer.url_root = config.getoption("--target")


@pytest.fixture(scope="session")
def qwen3_lora_files() -> str:
    return "lora"
