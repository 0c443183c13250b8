"""What the keys of the prefix cache are made of: an installation's secret, the model, the numerics.

The secret is a file of 32 random bytes in the cache directory, readable by its owner only. Without
it nobody can compute the key of a text, and with it keys stay the same over restarts.
"""

import logging
import os
import secrets
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path

from kokuban import __version__
from kokuban.core.errors import ConfigError
from kokuban.kvcache.layout import KvLayout
from kokuban.kvcache.prefix import KeySpace
from kokuban.program.program import Program
from kokuban.program.rope import inverse_frequencies

SECRET_BYTES = 32
SECRET_NAME = "prefix-cache.key"

PACKING_VERSION = 2
"""Raise it when a kernel, or the way weights are packed, gives other bits than before."""

_log = logging.getLogger(__name__)


def make_key_space(
    *,
    directory: Path,
    model_digest: str,
    program: Program,
    layout: KvLayout,
    isa: str,
    quantize: str,
    max_context_tokens: int,
    public: tuple[tuple[int, ...], ...] = (),
) -> KeySpace:
    """Names for the blocks of one engine.

    Args:
        directory: where the secret lies, or is put.
        isa: the instruction set of the kernels. All of them give the same bits today
            (docs/decisions/0006 and 0007); one that does not must not find the others' blocks.
        quantize: how weights were quantised at load, "none" included.
        public: beginnings that all tenants share, as token ids.

    Raises:
        ConfigError: the secret's file is not what it should be.
    """
    numerics = "/".join(
        (
            f"kokuban-{__version__}",
            f"packing-{PACKING_VERSION}",
            isa,
            f"quantize-{quantize}",
            f"rope-{_rope_digest(program, max_context_tokens)}",
        )
    )
    return KeySpace(
        secret=load_secret(directory),
        model_digest=bytes.fromhex(model_digest),
        numerics_id=numerics,
        kv_dtype=layout.layout_id,
        block_size=layout.block_size,
        public=public,
    )


def load_secret(directory: Path) -> bytes:
    """The installation's secret, made at the first call.

    Where it can be neither read nor written, a warning is logged and a secret of this process is
    used: the cache works, but no key outlives the process.

    Raises:
        ConfigError: the file does not hold 32 bytes.
    """
    path = directory / SECRET_NAME
    try:
        if not path.exists():
            _create(path)
        secret = path.read_bytes()
    except OSError as error:
        _log.warning(
            "%s: the secret of the prefix cache cannot be read or written (%s); one that ends with "
            "this process is used",
            path,
            error.strerror or error,
        )
        return secrets.token_bytes(SECRET_BYTES)
    if len(secret) != SECRET_BYTES:
        raise ConfigError(
            f"{path} has {len(secret)} bytes, not {SECRET_BYTES}; delete it and it is made again"
        )
    if path.stat().st_mode & 0o077:
        _log.warning("%s can be read by others; run chmod 600 on it, or delete it", path)
    return secret


def _create(path: Path) -> None:
    """Write the file whole under another name, then give it its own unless somebody was faster."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(os.urandom(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _rope_digest(program: Program, max_context_tokens: int) -> str:
    """Of the rotary frequencies: longrope's depend on the longest sequence that is allowed."""
    tables = [inverse_frequencies(config, max_context_tokens) for config in program.rope_tables]
    return blake2b(repr(tables).encode(), digest_size=8).hexdigest()
