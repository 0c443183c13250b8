"""The file of `--api-key-file`: TOML with names, scopes and limits, or a key on each line.

    [keys.alice]
    key = "sk-…"                     # or  sha256 = "…64 hex digits…"
    scopes = ["infer", "metrics"]    # default: infer
    requests_per_minute = 60         # 0: no limit; default: the server's
    tokens_per_minute = 100_000
    max_concurrent = 8
    tenant = "team"                  # default: the name; keys of one tenant share everything,
                                     # and a limit that one of them has is that of all

A file whose name does not end in `.toml` has one key on each line, all of which may infer.
"""

import re
from dataclasses import dataclass, replace
from hashlib import blake2b, sha256
from typing import Any

from kokuban.core.errors import ConfigError
from kokuban.server.scopes import GRANTED, KeyScope

MAX_KEYS = 1024
"""All of them are compared with the key of each request."""

MIN_KEY_LENGTH = 8

NAMED = "name-"
"""What the tenants of named keys begin with."""

_NAME = re.compile(r"[\w.\-]{1,64}", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")
_LIMITS = ("requests_per_minute", "tokens_per_minute", "max_concurrent")
_FIELDS = frozenset({"key", "sha256", "scopes", "tenant", *_LIMITS})


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyEntry:
    """One key of the file; see `keys.Caller`."""

    digest: bytes
    tenant: str
    name: str = ""
    scopes: frozenset[KeyScope] = frozenset({KeyScope.INFER})
    requests_per_minute: float | None = None
    tokens_per_minute: float | None = None
    max_concurrent: int | None = None


def parse_keys(text: str, file_name: str) -> list[KeyEntry]:
    """The keys of a file's text.

    Raises:
        ConfigError: what is wrong, and where; never a key itself.
    """
    entries = _from_toml(text) if file_name.endswith(".toml") else _from_lines(text)
    if not 1 <= len(entries) <= MAX_KEYS:
        raise ConfigError(f"{file_name} has {len(entries)} keys; a key file has 1 to {MAX_KEYS}")
    return entries


def check_key(key: object, where: str) -> str:
    """A key as text.

    Raises:
        ConfigError: no header can hold it, or it is too short to be a secret.
    """
    if not isinstance(key, str) or key != key.strip() or not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{where}: a key is printable ASCII without blanks at its ends")
    if len(key) < MIN_KEY_LENGTH:
        raise ConfigError(f"{where}: the key has {len(key)} characters, {MIN_KEY_LENGTH} at least")
    return key


def digest_of(key: bytes) -> bytes:
    """What is kept of a key. Plain SHA-256: keys are random, so that nobody can try them all."""
    return sha256(key).digest()


def tenant_of(key: bytes) -> str:
    """The tenant that a key without a name stands for, whatever other keys there are.

    KV on disk carries its tenant's name over restarts, and the operator may reorder the keys.
    """
    return f"key-{blake2b(key, digest_size=16).hexdigest()}"


def _from_lines(text: str) -> list[KeyEntry]:
    entries = []
    for number, line in enumerate(text.splitlines(), 1):
        key = line.strip()
        if key and not key.startswith("#"):
            raw = check_key(key, f"line {number}").encode()
            entries.append(KeyEntry(digest=digest_of(raw), tenant=tenant_of(raw)))
    return entries


def _from_toml(text: str) -> list[KeyEntry]:
    import tomllib  # A start without such a file needs none of it.

    try:
        found = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the key file is no TOML: {error}") from None
    keys = found.get("keys")
    if not isinstance(keys, dict) or set(found) != {"keys"}:
        raise ConfigError("a key file holds tables [keys.NAME] and nothing else")
    entries = [_entry(name, fields) for name, fields in keys.items()]
    for limit in _LIMITS:
        entries = _shared(entries, limit)
    return entries


def _shared(entries: list[KeyEntry], limit: str) -> list[KeyEntry]:
    """The same keys; what one of a tenant says of a limit holds for all that share it."""
    said: dict[str, KeyEntry] = {}
    for entry in entries:
        if (value := getattr(entry, limit)) is None:
            continue
        first = said.setdefault(entry.tenant, entry)
        if getattr(first, limit) != value:
            raise ConfigError(
                f"[keys.{entry.name}]: {limit} is {value:.0f}, and {getattr(first, limit):.0f} for "
                f"[keys.{first.name}] of the same tenant, which shares it; say it once"
            )
    limits = {tenant: {limit: getattr(entry, limit)} for tenant, entry in said.items()}
    return [replace(entry, **limits.get(entry.tenant, {})) for entry in entries]


def _entry(name: str, fields: Any) -> KeyEntry:
    where = f"[keys.{name[:64]}]"
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{where}: a name has 1 to 64 letters, digits, '_', '-' and '.'")
    if not isinstance(fields, dict):
        raise ConfigError(f"{where} is no table")
    if unknown := sorted(set(fields) - _FIELDS):
        raise ConfigError(f"{where} has {unknown[0]!r}; it may have {', '.join(sorted(_FIELDS))}")
    tenant = fields.get("tenant", name)
    if not isinstance(tenant, str) or not _NAME.fullmatch(tenant):
        raise ConfigError(f"{where}: tenant is no name as the keys have")
    concurrent = _number(where, fields, "max_concurrent")
    return KeyEntry(
        name=name,
        digest=_digest(where, fields),
        scopes=_scopes(where, fields.get("scopes", ["infer"])),
        # A name survives the key: who changes keys keeps sessions, cache and share.
        tenant=NAMED + tenant,
        requests_per_minute=_number(where, fields, "requests_per_minute"),
        tokens_per_minute=_number(where, fields, "tokens_per_minute"),
        max_concurrent=None if concurrent is None else int(concurrent),
    )


def _digest(where: str, fields: dict[str, Any]) -> bytes:
    if ("key" in fields) == ("sha256" in fields):
        raise ConfigError(f"{where} needs one of key and sha256")
    if "key" in fields:
        return digest_of(check_key(fields["key"], where).encode())
    digest = fields["sha256"]
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest.lower()):
        raise ConfigError(f"{where}: sha256 is the 64 hex digits of `printf %s KEY | sha256sum`")
    return bytes.fromhex(digest)


def _scopes(where: str, given: Any) -> frozenset[KeyScope]:
    known = isinstance(given, list) and all(str(word) in GRANTED for word in given)
    if not given or not known:
        raise ConfigError(f"{where}: scopes is a list of {', '.join(sorted(GRANTED))}")
    return frozenset(KeyScope(word) for word in given)


def _number(where: str, fields: dict[str, Any], name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 10**12:
        raise ConfigError(f"{where}: {name} is a whole number from 0 (no limit) to 10^12")
    return float(value)
