"""The directory of one disk store: its lock, its description, and all such directories of a root.

A namespace holds the blocks of one model, layout and numerics. Its files:

    kokuban-kv.lock      held (flock) by the one process that may write
    kokuban-kv.json      what the blocks are, for people, and the geometry of the slots
    kokuban-kv.sqlite3   which slot holds which block, with -wal beside it
    segment-*.kv         the slots

Whoever deletes a namespace takes the lock first and deletes these files only.
"""

import fcntl
import hashlib
import json
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from kokuban.core.errors import ConfigError, StoreInUse
from kokuban.kvcache import segments
from kokuban.kvcache.segments import Segments, segment_number
from kokuban.kvcache.slot_format import looks_used

LOCK_NAME = "kokuban-kv.lock"
DESCRIPTION_NAME = "kokuban-kv.json"
INDEX_NAME = "kokuban-kv.sqlite3"
DRAFT_NAME = DESCRIPTION_NAME + ".tmp"

_INDEX_NAMES = tuple(INDEX_NAME + ending for ending in ("", "-wal", "-shm", "-journal"))
_FORMAT = 1

_LOG = logging.getLogger(__name__)
_MAX_DESCRIPTION_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Geometry:
    """What must be equal for one store to read another's slots."""

    payload_bytes: int
    slot_bytes: int
    slots_per_segment: int
    secret_id: str


@dataclass(frozen=True, slots=True)
class Description:
    """What stands in kokuban-kv.json."""

    geometry: Geometry
    facts: Mapping[str, str]

    def encode(self) -> bytes:
        """JSON with a digest, so that damage is not taken for another geometry."""
        body = {
            "format": _FORMAT,
            "payload_bytes": self.geometry.payload_bytes,
            "slot_bytes": self.geometry.slot_bytes,
            "slots_per_segment": self.geometry.slots_per_segment,
            "secret_id": self.geometry.secret_id,
            "facts": dict(self.facts),
        }
        return json.dumps({**body, "digest": _digest(body)}, indent=1).encode() + b"\n"


@dataclass(frozen=True, slots=True)
class NamespaceSummary:
    """One line of a list of namespaces."""

    name: str
    description: Description | None
    """None: kokuban-kv.json is missing or damaged."""

    num_blocks: int
    num_bytes: int
    last_used_s: float
    """Seconds since 1970: when a file of it changed last."""


def decode_description(encoded: bytes) -> Description | None:
    """What `encode` wrote; None if it is anything else."""
    try:
        body = json.loads(encoded)
        digest = body.pop("digest")
        if digest != _digest(body) or body["format"] != _FORMAT:
            return None
        geometry = Geometry(
            payload_bytes=int(body["payload_bytes"]),
            slot_bytes=int(body["slot_bytes"]),
            slots_per_segment=int(body["slots_per_segment"]),
            secret_id=str(body["secret_id"]),
        )
        facts = {str(name): str(value) for name, value in body["facts"].items()}
        return Description(geometry, facts)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def open_directory(path: Path, *, create: bool) -> int:
    """A descriptor of a namespace's directory, which others cannot enter.

    Raises:
        ConfigError: it is no directory, a symbolic link, or cannot be made or entered.
    """
    try:
        if create:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be used for KV blocks ({error.strerror or error}); it must be a "
            f"directory, no symbolic link, that this user may write"
        ) from error
    if create and stat.S_IMODE(os.fstat(directory).st_mode) & 0o077:
        with suppress(OSError):
            os.fchmod(directory, 0o700)
    return directory


def take_lock(directory: int, path: Path) -> int:
    """Become the one process that may write here, until the descriptor is closed.

    Raises:
        StoreInUse: another process is, or another store of this one.
        ConfigError: the lock's file cannot be made.
    """
    while True:
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            lock = os.open(LOCK_NAME, flags, 0o600, dir_fd=directory)
        except OSError as error:
            raise ConfigError(
                f"{path / LOCK_NAME} cannot be opened ({error.strerror or error}); "
                f"make {path} writable for this user"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(lock)
            raise StoreInUse(
                f"{path} is in use by another process; only one at a time may write KV blocks "
                f"there: end it, or give this one another directory"
            ) from error
        if _is_still(lock, directory):
            return lock
        os.close(lock)  # Who held it has deleted the file in between.


def read_description(directory: int) -> Description | None:
    """What kokuban-kv.json says; None if it is missing or damaged."""
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(DESCRIPTION_NAME, flags, dir_fd=directory)
    except OSError:
        return None
    try:
        return decode_description(os.read(file, _MAX_DESCRIPTION_BYTES))
    except OSError:
        return None
    finally:
        os.close(file)


def write_description(directory: int, description: Description) -> None:
    """Write kokuban-kv.json whole under another name, then give it its own.

    Raises:
        OSError: the old one, if any, is unchanged.
    """
    remove_draft(directory)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(DRAFT_NAME, flags, 0o600, dir_fd=directory), "wb") as file:
        file.write(description.encode())
    os.rename(DRAFT_NAME, DESCRIPTION_NAME, src_dir_fd=directory, dst_dir_fd=directory)


def remove_draft(directory: int) -> None:
    """Delete what an interrupted `write_description` left."""
    with suppress(FileNotFoundError):
        os.unlink(DRAFT_NAME, dir_fd=directory)


def open_segments(directory: int, path: Path, description: Description) -> Segments:
    """The segments of a namespace, emptied if their slots are not as described.

    Removes what cannot belong to it, and writes the description if it differs. Needs the lock.

    Raises:
        OSError: the directory cannot be read, or segments that must go cannot be deleted.
    """
    remove_draft(directory)
    segments.remove_strangers(directory)
    files = _segments(directory, description.geometry)
    found = read_description(directory)
    if found is not None and found.geometry != description.geometry:
        _LOG.warning("%s holds KV blocks of another shape or secret; they are deleted", path)
        files.trim(0)
    if found != description:
        try:
            write_description(directory, description)
        except OSError as error:
            _LOG.warning("%s cannot be described (%s)", path, error)
    return files


def list_namespaces(root: Path) -> list[NamespaceSummary]:
    """The namespaces under a root, by name. Symbolic links and other directories are left out.

    Reads the header of every slot; takes no lock, so that numbers may be of a moment ago.
    """
    try:
        names = sorted(entry.name for entry in os.scandir(root) if _is_namespace(entry))
    except FileNotFoundError:
        return []
    return [_summary(root / name) for name in names]


def delete_namespace(path: Path) -> None:
    """Delete the files of a namespace, and its directory unless there are files of others.

    Raises:
        StoreInUse: a process has it open. Nothing has changed.
        ConfigError: it cannot be opened, or not all of it can be deleted.
    """
    directory = open_directory(path, create=False)
    try:
        lock = take_lock(directory, path)
        try:
            own = [name for name in os.listdir(directory) if _is_ours(name)]
            # The lock goes last: nobody may come in while there is something to delete.
            for name in sorted(own, key=lambda name: name == LOCK_NAME):
                os.unlink(name, dir_fd=directory)
            path.rmdir()
        except OSError as error:
            raise ConfigError(
                f"{path} could not be deleted ({error.strerror or error}); what is left there is "
                f"no file of a KV cache, or belongs to another user"
            ) from error
        finally:
            os.close(lock)
    finally:
        os.close(directory)


@contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of an existing namespace's directory, for as long as the block runs."""
    directory = open_directory(path, create=False)
    try:
        yield directory
    finally:
        os.close(directory)


def _summary(path: Path) -> NamespaceSummary:
    with opened(path) as directory:
        description = read_description(directory)
        facts = [
            os.stat(name, dir_fd=directory, follow_symlinks=False)
            for name in os.listdir(directory)
            if _is_ours(name)
        ]
        return NamespaceSummary(
            name=path.name,
            description=description,
            num_blocks=_count_blocks(directory, description),
            num_bytes=sum(fact.st_size for fact in facts),
            last_used_s=max((fact.st_mtime for fact in facts), default=0.0),
        )


def _count_blocks(directory: int, description: Description | None) -> int:
    if description is None:
        return 0
    files = _segments(directory, description.geometry)
    try:
        return sum(looks_used(header) for _, header in files.headers())
    finally:
        files.close()


def _segments(directory: int, geometry: Geometry) -> Segments:
    return Segments(
        directory, slot_bytes=geometry.slot_bytes, slots_per_segment=geometry.slots_per_segment
    )


def _is_namespace(entry: "os.DirEntry[str]") -> bool:
    if not entry.is_dir(follow_symlinks=False):
        return False
    try:
        return any(_is_ours(name) for name in os.listdir(entry.path))
    except OSError:
        return False


def _is_ours(name: str) -> bool:
    own = (LOCK_NAME, DESCRIPTION_NAME, DRAFT_NAME, *_INDEX_NAMES)
    return name in own or segment_number(name) is not None


def _is_still(lock: int, directory: int) -> bool:
    try:
        named = os.stat(LOCK_NAME, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    held = os.fstat(lock)
    return (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino)


def _digest(body: Mapping[str, object]) -> str:
    return hashlib.blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=16).hexdigest()
