"""API keys: who may do what, and how much of it.

Two sources: the command line (`--api-key`: infer and metrics; `--admin-key`: everything) and a file
that is read again when it changes. Only digests of keys are kept. A file that cannot be read leaves
the keys as they were: an operator's slip must lock nobody out, nor let anybody in.
"""

import hmac
import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kokuban.core.errors import ConfigError
from kokuban.observe.clock import Clock, SystemClock
from kokuban.server.key_file import KeyEntry, digest_of, parse_keys, tenant_of
from kokuban.server.scopes import EVERYBODY_MAY, GRANTED, KeyScope

CHECK_EVERY_S = 1.0
"""How old the knowledge of the file may be when a request comes."""

MAX_FILE_BYTES = 2**20

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whoever a request comes from, as its key tells."""

    name: str = ""
    """For people; "" where nobody gave one."""

    tenant: str = ""
    """Whose requests, sessions and KV they are; "" on a server without keys."""

    scopes: frozenset[KeyScope] = EVERYBODY_MAY
    has_key: bool = True
    requests_per_minute: float | None = None
    """None: what the server gives to everybody; 0: no limit. The same for those below."""

    tokens_per_minute: float | None = None
    max_concurrent: int | None = None


EVERYBODY = Caller(has_key=False)
"""Who calls a server that has no keys."""


@dataclass(frozen=True, slots=True)
class _Known:
    digest: bytes
    caller: Caller


@dataclass(slots=True)
class _File:
    """What was last seen of the key file."""

    path: Path
    identity: tuple[int, ...] = ()
    checked_s: float = 0.0
    known: list[_Known] = field(default_factory=list)


class KeyRing:
    """All keys of a server. On the event loop's thread only.

    Args:
        api_keys: keys that may infer and read metrics.
        admin_keys: keys that may do everything.
        file: more keys; see `docs/security.md` for its form.
        clock: says when to look at the file again.

    Raises:
        ConfigError: the file cannot be read, or a key occurs twice.
    """

    def __init__(
        self,
        api_keys: Sequence[str] = (),
        admin_keys: Sequence[str] = (),
        file: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._clock = clock or SystemClock()
        self._fixed = [_from_command_line(key, EVERYBODY_MAY) for key in api_keys]
        self._fixed += [_from_command_line(key, GRANTED) for key in admin_keys]
        self._file = None if file is None else _File(Path(file))
        if self._file is not None:
            self._file.identity = _identity(self._file.path)
            self._file.checked_s = self._clock.now()
            self._file.known = self._read(self._file.path)
        self._count_tenants()

    @property
    def is_open(self) -> bool:
        """Whether there are no keys, so that everybody may come in."""
        return self._file is None and not self._fixed

    def _count_tenants(self) -> None:
        self.num_tenants = max(1, len({known.caller.tenant for known in self._all()}))
        """Different tenants; 1 for everybody."""

    @property
    def may_grow(self) -> bool:
        """Whether tenants may come while the server runs."""
        return self._file is not None

    def find(self, key: str) -> Caller | None:
        """Whose key it is; None for nobody's.

        All keys are compared, each in constant time, so that time tells neither how many there are
        before the right one nor how much of a guess was right.
        """
        self._look_at_file()
        digest = digest_of(key.encode("latin-1", "replace"))
        found = None
        for known in self._all():
            if hmac.compare_digest(digest, known.digest):
                found = known.caller
        return found

    def _all(self) -> list[_Known]:
        return self._fixed if self._file is None else [*self._fixed, *self._file.known]

    def _look_at_file(self) -> None:
        file, now_s = self._file, self._clock.now()
        if file is None or now_s - file.checked_s < CHECK_EVERY_S:
            return
        file.checked_s = now_s
        identity = _identity(file.path)
        if identity == file.identity:
            return
        file.identity = identity  # First: what is wrong with this file is told once.
        try:
            file.known = self._read(file.path)
        except ConfigError as error:
            _log.error("the API keys stay as they were: %s", error)
            return
        self._count_tenants()
        _log.info("read %d API keys from %s", len(file.known), file.path)

    def _read(self, path: Path) -> list[_Known]:
        try:
            found = path.stat()
            if found.st_size > MAX_FILE_BYTES:
                raise ConfigError(f"the key file {path} has more than {MAX_FILE_BYTES} bytes")
            text = path.read_text("utf-8")
        except OSError as error:
            raise ConfigError(f"the key file {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"the key file {path} is no text in UTF-8") from None
        entries = parse_keys(text, path.name)
        known = [_Known(entry.digest, _caller(entry)) for entry in entries]
        digests = [each.digest for each in (*self._fixed, *known)]
        if len(set(digests)) < len(digests):
            raise ConfigError(f"a key occurs twice in {path}, or is also on the command line")
        if found.st_mode & (stat.S_IROTH | stat.S_IWOTH | stat.S_IWGRP):
            mode = stat.S_IMODE(found.st_mode)
            _log.warning("others can read or change the key file %s (mode %03o)", path, mode)
        return known


def _from_command_line(key: str, scopes: frozenset[KeyScope]) -> _Known:
    return _Known(digest_of(key.encode()), Caller(tenant=tenant_of(key.encode()), scopes=scopes))


def _caller(entry: KeyEntry) -> Caller:
    return Caller(
        name=entry.name,
        tenant=entry.tenant,
        scopes=entry.scopes,
        requests_per_minute=entry.requests_per_minute,
        tokens_per_minute=entry.tokens_per_minute,
        max_concurrent=entry.max_concurrent,
    )


def _identity(path: Path) -> tuple[int, ...]:
    """Changes with the file: another one, another content, none."""
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
