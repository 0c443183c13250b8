"""Hub models: from the local cache without a network, and the errors when they are not there."""

import json
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

from kokuban.core.errors import ModelError
from kokuban.weights.hub import fetch_from_hub, parse_hub_id

COMMIT = "0123456789abcdef0123456789abcdef01234567"
REPO = "owner/tiny"


def cached(cache: Path, files: dict[str, str]) -> Path:
    """A repository in the layout of the hub's cache; returns its snapshot."""
    repo = cache / "models--owner--tiny"
    snapshot = repo / "snapshots" / COMMIT
    for directory in (repo / "refs", repo / "blobs", snapshot):
        directory.mkdir(parents=True)
    (repo / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        blob = repo / "blobs" / name.replace("/", "-")
        blob.write_text(content)
        (snapshot / name).symlink_to(blob)
    return snapshot


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub's library fails at once instead of asking the network."""

    def fail(*args: object, **options: object) -> str:
        raise LocalEntryNotFoundError("offline here\nand more")

    for name in ("snapshot_download", "hf_hub_download"):
        real = getattr(huggingface_hub, name)
        monkeypatch.setattr(huggingface_hub, name, only_local(real, fail))


def only_local(real: Callable[..., str], fail: Callable[..., str]) -> Callable[..., str]:
    def download(*args: object, **options: object) -> str:
        return (real if options.get("local_files_only") else fail)(*args, **options)

    return download


COMPLETE = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": ""}


@pytest.mark.usefixtures("no_network")
def test_a_cached_model_needs_no_network(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, COMPLETE)

    assert fetch_from_hub(REPO, None, tmp_path) == snapshot


@pytest.mark.usefixtures("no_network")
def test_a_cached_gguf_file_needs_no_network(tmp_path: Path) -> None:
    snapshot = cached(tmp_path, {"m.gguf": ""})

    assert fetch_from_hub(REPO, "m.gguf", tmp_path) == snapshot / "m.gguf"


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize("absent", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_snapshot_that_was_cut_is_not_taken_as_the_model(tmp_path: Path, absent: str) -> None:
    cached(tmp_path, {name: text for name, text in COMPLETE.items() if name != absent})

    with pytest.raises(ModelError) as caught:
        fetch_from_hub(REPO, None, tmp_path)

    assert str(caught.value) == (
        "owner/tiny: is not in the local cache and the hub cannot be reached: offline here"
    )


@pytest.mark.usefixtures("no_network")
def test_every_shard_of_the_index_must_be_cached(tmp_path: Path) -> None:
    index = json.dumps({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})
    files = {"config.json": "{}", "tokenizer.json": "{}", "one.safetensors": ""}
    snapshot = cached(tmp_path, {**files, "model.safetensors.index.json": index})
    with pytest.raises(ModelError, match="is not in the local cache"):
        fetch_from_hub(REPO, None, tmp_path)

    (snapshot / "two.safetensors").write_text("")

    assert fetch_from_hub(REPO, None, tmp_path) == snapshot


def refuse(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    def download(*args: object, **options: object) -> str:
        if options.get("local_files_only"):
            raise LocalEntryNotFoundError("absent")
        raise error.__new__(error)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)


def test_a_gated_model_says_where_to_accept_its_licence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, GatedRepoError)

    with pytest.raises(ModelError, match=r"https://huggingface\.co/owner/tiny and log in with `hf"):
        fetch_from_hub(REPO, None, tmp_path)


def test_a_model_that_does_not_exist_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse(monkeypatch, RepositoryNotFoundError)

    with pytest.raises(ModelError, match="owner/tiny: there is no such model on the hub"):
        fetch_from_hub(REPO, None, tmp_path)


def test_a_repository_of_gguf_files_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.gguf").write_text("")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *a, **o: str(tmp_path))

    with pytest.raises(ModelError, match=r"give the file: owner/tiny:FILE\.gguf"):
        fetch_from_hub(REPO, None, tmp_path)


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("owner/name-1.5B", ("owner/name-1.5B", None)),
        ("owner/name:dir/file-Q4_K_M.gguf", ("owner/name", "dir/file-Q4_K_M.gguf")),
        ("name", None),
        ("a/b/c", None),
        ("owner/name:file.bin", None),
    ],
)
def test_hub_ids_are_owner_and_name_with_an_optional_file(
    name: str, parsed: tuple[str, str | None] | None
) -> None:
    assert parse_hub_id(name) == parsed
