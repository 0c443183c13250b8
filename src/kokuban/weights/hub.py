"""Models from the Hugging Face hub, through `huggingface_hub` and its cache.

The local cache is asked first, so that a model that was fetched once starts without a network.
The library takes about a second to import: only these functions do it.
"""

import re
from pathlib import Path

from kokuban.core.errors import ModelError
from kokuban.weights.safetensors import INDEX_FILE, SINGLE_FILE, read_json
from kokuban.weights.tokenizer_source import TOKENIZER_JSON

_ID = re.compile(r"([\w.-]+/[\w.-]+)(?::(.+\.gguf))?")
_PATTERNS = ("*.json", "*.jinja", "model*.safetensors")
"""What a model needs. Some repositories hold the weights a second time, in another format."""


def parse_hub_id(name: str) -> tuple[str, str | None] | None:
    """Split owner/name or owner/name:FILE.gguf; None if it is neither."""
    match = _ID.fullmatch(name)
    return (match[1], match[2]) if match else None


def fetch_from_hub(repo: str, file: str | None, cache: Path | None = None) -> Path:
    """Return a model of the hub in the local cache, downloading what is missing.

    Progress is shown by the library itself.

    Args:
        repo: owner/name.
        file: one GGUF file of the repository; None: the model directory.
        cache: the hub's cache directory; None: the library's own setting.

    Returns:
        The file, or the directory.

    Raises:
        ModelError: it does not exist, is not open to this user, or cannot be reached.
    """
    local = _cached(repo, file, cache)
    return local if local is not None else _downloaded(repo, file, cache)


def _cached(repo: str, file: str | None, cache: Path | None) -> Path | None:
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        if file is not None:
            return Path(hf_hub_download(repo, file, cache_dir=cache, local_files_only=True))
        path = Path(snapshot_download(repo, cache_dir=cache, local_files_only=True))
    except (LocalEntryNotFoundError, FileNotFoundError):
        return None
    return path if _is_complete(path) else None


def _is_complete(directory: Path) -> bool:
    """Whether a snapshot holds every file that a model needs; downloads may have been cut."""
    if not all((directory / name).exists() for name in ("config.json", TOKENIZER_JSON)):
        return False
    index = directory / INDEX_FILE
    if not index.exists():
        return (directory / SINGLE_FILE).exists()
    shards = read_json(index).get("weight_map")
    names = set(shards.values()) if isinstance(shards, dict) else set()
    return all((directory / str(name)).exists() for name in names)


def _downloaded(repo: str, file: str | None, cache: Path | None) -> Path:
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        HFValidationError,
        RepositoryNotFoundError,
    )

    try:
        if file is not None:
            return Path(hf_hub_download(repo, file, cache_dir=cache))
        path = Path(snapshot_download(repo, cache_dir=cache, allow_patterns=list(_PATTERNS)))
    except GatedRepoError:
        raise ModelError(
            f"{repo}: its owner asks users to accept a licence; do so at "
            f"https://huggingface.co/{repo} and log in with `hf auth login`"
        ) from None
    except (RepositoryNotFoundError, HFValidationError):
        raise ModelError(f"{repo}: there is no such model on the hub, or it is private") from None
    except EntryNotFoundError as error:
        if file is not None and not _is_offline(error):
            raise ModelError(f"{repo}: has no file {file!r}") from None
        raise _unreachable(repo, error) from error
    except (OSError, RuntimeError) as error:
        raise _unreachable(repo, error) from error
    if not _is_complete(path):
        raise ModelError(
            f"{repo}: holds no model of config.json, {TOKENIZER_JSON} and safetensors; if it is "
            f"one of GGUF files, give the file: {repo}:FILE.gguf"
        )
    return path


def _is_offline(error: Exception) -> bool:
    from huggingface_hub.errors import LocalEntryNotFoundError

    return isinstance(error, LocalEntryNotFoundError)


def _unreachable(repo: str, error: Exception) -> ModelError:
    lines = str(error).strip().splitlines()
    detail = lines[0] if lines else type(error).__name__
    return ModelError(f"{repo}: is not in the local cache and the hub cannot be reached: {detail}")
