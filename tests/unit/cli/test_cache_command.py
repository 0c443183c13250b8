"""`kokuban cache`: what lies on disk, for people."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.unit.kvcache.disk_blocks import (
    FACTS,
    PAYLOAD_BYTES,
    SECRET,
    SLOT_BYTES,
    content,
    open_store,
    put,
    right,
)

from kokuban.cli import app
from kokuban.core.errors import ConfigError
from kokuban.engine.cache_keys import SECRET_NAME
from kokuban.kvcache.disk_store import DiskStore
from kokuban.kvcache.namespace import DESCRIPTION_NAME, INDEX_NAME, LOCK_NAME

SEGMENT = "segment-00000.kv"
NEW_YEAR_S = 1_767_225_600


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache directory, with a secret."""
    monkeypatch.setenv("KOKUBAN_CACHE", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / SECRET_NAME).write_bytes(SECRET)
    (tmp_path / SECRET_NAME).chmod(0o600)
    return tmp_path


def run(*arguments: str, answer: str = "") -> tuple[int, str]:
    """Exit code and output; what the operator did wrong is raised as in `main`."""
    result = CliRunner().invoke(app, ["cache", *arguments], input=answer)
    if isinstance(result.exception, ConfigError):
        result.exception.add_note(result.output)
        raise result.exception
    return result.exit_code, result.output


def make(directory: Path, *numbers: int) -> Path:
    store = open_store(directory)
    put(store, *numbers)
    store.close()
    return directory


def damage(directory: Path, slot: int) -> None:
    data = bytearray((directory / SEGMENT).read_bytes())
    data[slot * SLOT_BYTES + 300] ^= 1
    (directory / SEGMENT).write_bytes(data)


def test_a_list_says_what_each_namespace_holds(cache: Path) -> None:
    for name, numbers in (("aa", range(3)), ("bb", range(12))):
        make(cache / "kv" / name, *numbers)
        for path in (cache / "kv" / name).iterdir():
            os.utime(path, (NEW_YEAR_S, NEW_YEAR_S))
    size = sum(path.stat().st_size for path in (cache / "kv" / "bb").iterdir())

    code, output = run("ls")

    assert code == 0
    titles, first, second = (line.split() for line in output.splitlines())
    assert titles == ["namespace", "model", "KV", "dtype", "blocks", "bytes", "last", "used"]
    assert first[:4] == ["aa", "tiny", "bf16", "3"]
    assert second == ["bb", "tiny", "bf16", "12", f"{size:,}", "2026-01-01T00:00:00Z"]
    assert json.loads(run("ls", "--json")[1])[1] == {
        "namespace": "bb",
        "facts": FACTS,
        "block_bytes": PAYLOAD_BYTES,
        "blocks": 12,
        "bytes": size,
        "last_used": "2026-01-01T00:00:00Z",
    }


def test_a_list_works_beside_the_process_that_writes(cache: Path) -> None:
    store = open_store(cache / "kv" / "aa")
    put(store, 1, 2, 3)
    store.remove(content(2))

    [record] = json.loads(run("ls", "--json")[1])

    assert record["blocks"] == 2
    store.close()


def test_a_list_without_blocks_says_so(cache: Path) -> None:
    (cache / "kv" / "photos").mkdir(parents=True)

    assert run("ls") == (0, f"no KV blocks in {cache / 'kv'}\n")
    assert run("ls", "--dir", str(cache / "none")) == (0, f"no KV blocks in {cache / 'none'}\n")
    assert run("ls", "--json") == (0, "[]\n")
    assert run("verify") == (0, "")
    assert run("rm", "--all", "--yes") == (0, f"no KV blocks in {cache / 'kv'}\n")


def test_a_damaged_description_is_shown_and_can_be_deleted(cache: Path) -> None:
    directory = make(cache / "kv" / "aa", 1)
    (directory / DESCRIPTION_NAME).write_text("[1, 2")

    assert run("ls")[1].splitlines()[1].split()[:4] == ["aa", "?", "?", "?"]
    with pytest.raises(ConfigError, match=r"aa does not say what it holds.*cache rm aa"):
        run("verify")
    assert run("rm", "aa", "--yes") == (0, "deleted aa\n")
    assert not directory.exists()


def test_deleting_asks_before(cache: Path) -> None:
    directory = make(cache / "kv" / "aa", 1)
    make(cache / "kv" / "bb", 1)

    code, output = run("rm", "aa", answer="n\n")
    assert (code, directory.exists()) == (1, True)
    assert f"Delete aa in {cache / 'kv'}?" in output

    code, output = run("rm", "aa", answer="y\n")
    assert (code, directory.exists()) == (0, False)
    assert (cache / "kv" / "bb").exists()

    assert run("rm", "--all", "-y") == (0, "deleted bb\n")
    assert list((cache / "kv").iterdir()) == []


def test_a_namespace_in_use_is_not_deleted_and_others_are(cache: Path) -> None:
    make(cache / "kv" / "bb", 1)
    store = open_store(cache / "kv" / "aa")
    put(store, 1)

    with pytest.raises(ConfigError, match="aa is in use by another process") as error:
        run("verify")
    assert error.value.__notes__ == ["bb: 1 blocks, 0 bad\n"]
    with pytest.raises(ConfigError, match="aa is in use by another process"):
        run("rm", "--all", "--yes")

    assert right(store, 1) == [True]
    assert {path.name for path in (cache / "kv" / "aa").iterdir()} >= {SEGMENT, LOCK_NAME}
    assert not (cache / "kv" / "bb").exists()
    store.close()


def test_files_of_others_are_neither_listed_nor_deleted(cache: Path) -> None:
    directory = make(cache / "kv" / "aa", 1)
    (directory / "notes.txt").write_text("mine")
    (cache / "kv" / "link").symlink_to(make(cache / "elsewhere", 1))

    assert [each["namespace"] for each in json.loads(run("ls", "--json")[1])] == ["aa"]
    with pytest.raises(ConfigError, match=r"link is no namespace in .*; there are: aa"):
        run("rm", "link", "--yes")
    with pytest.raises(ConfigError, match="elsewhere is no namespace"):
        run("rm", "../elsewhere", "--yes")
    with pytest.raises(ConfigError, match="what is left there is no file of a KV cache"):
        run("rm", "aa", "--yes")

    assert [path.name for path in directory.iterdir()] == ["notes.txt"]
    assert (cache / "elsewhere" / SEGMENT).exists()


@pytest.mark.parametrize("arguments", [["rm"], ["rm", "aa", "--all"]])
def test_what_to_delete_is_said_in_one_way(arguments: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"name one namespace .*, or give --all"):
        run(*arguments)


def test_verify_counts_bad_blocks_and_changes_nothing_until_told(cache: Path) -> None:
    directory = make(cache / "kv" / "aa", *range(5))
    make(cache / "kv" / "bb", *range(2))
    assert run("verify") == (0, "aa: 5 blocks, 0 bad\nbb: 2 blocks, 0 bad\n")
    damage(directory, 1)
    damage(directory, 3)

    for _ in range(2):
        code, output = run("verify")
        assert code == 1
        assert output == (
            "aa: 5 blocks, 2 bad\nbb: 2 blocks, 0 bad\n"
            "bad blocks are never used; --fix drops them now\n"
        )
    assert run("verify", "bb") == (0, "bb: 2 blocks, 0 bad\n")
    assert run("verify", "aa", "--fix") == (1, "aa: 5 blocks, 2 bad and dropped\n")
    assert run("verify", "aa") == (0, "aa: 3 blocks, 0 bad\n")
    store = open_store(directory)
    assert right(store, *range(5)) == [True, False, True, False, True]
    assert store.counters.bad == 0
    store.close()


def test_blocks_whose_file_is_gone_count_as_bad_once(cache: Path) -> None:
    directory = make(cache / "kv" / "aa", *range(9))
    (directory / "segment-00001.kv").unlink()

    assert run("verify", "aa")[1].startswith("aa: 9 blocks, 1 bad\n")
    assert run("verify", "aa") == (0, "aa: 8 blocks, 0 bad\n")


def test_blocks_of_another_installation_are_left_alone(cache: Path) -> None:
    directory = cache / "kv" / "aa"
    store = DiskStore.open(
        directory, payload_bytes=PAYLOAD_BYTES, max_bytes=None, secret=b"x" * 32, facts={}
    )
    put(store, 1, 2)
    store.close()
    before = (directory / SEGMENT).read_bytes()

    with pytest.raises(ConfigError, match=r"written with another secret.*set KOKUBAN_CACHE"):
        run("verify", "--fix")
    (cache / SECRET_NAME).unlink()
    with pytest.raises(ConfigError, match="written with another secret"):
        run("verify")

    assert (directory / SEGMENT).read_bytes() == before
    assert not (cache / SECRET_NAME).exists()
    assert (directory / INDEX_NAME).exists()
