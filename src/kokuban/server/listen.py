"""The address of a server, taken before its model is loaded and its libraries are imported."""

import os
import socket
import stat
from typing import TYPE_CHECKING

from kokuban.core.errors import ConfigError
from kokuban.server.settings import ServerSettings

if TYPE_CHECKING:
    import ssl


def check_files(settings: ServerSettings) -> None:
    """Read the files that the settings name, so that what is wrong is known at once.

    Raises:
        ConfigError: keys or certificates cannot be read.
    """
    if settings.api_key_file is not None:
        from kokuban.server.keys import KeyRing

        KeyRing(settings.api_keys, settings.admin_keys, settings.api_key_file)
    if settings.ssl_certfile is not None:
        import ssl

        load_certificates(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), settings)


def load_certificates(context: "ssl.SSLContext", settings: ServerSettings) -> None:
    """Put the certificate and its key into a context.

    Raises:
        ConfigError: they cannot be read, or do not belong together.
    """
    assert settings.ssl_certfile is not None, "there is no certificate"

    def no_password() -> str:
        raise ConfigError(f"the key {settings.ssl_keyfile} has a password; take it away")

    try:
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, no_password)
    except OSError as error:  # ssl.SSLError is one, and its text names no file.
        raise ConfigError(
            f"the certificate {settings.ssl_certfile} with the key {settings.ssl_keyfile} cannot "
            f"be used: {error.strerror or error}"
        ) from None


def bind(settings: ServerSettings) -> socket.socket:
    """Take the address before the model is loaded: what is in use is known at once.

    The socket does not listen yet, so that clients are refused rather than kept waiting.

    Raises:
        ConfigError: the address cannot be had.
    """
    return _bind_tcp(settings) if settings.uds is None else _bind_unix(settings.uds)


def _bind_tcp(settings: ServerSettings) -> socket.socket:
    host = settings.host.strip("[]")
    try:
        found = socket.getaddrinfo(host, settings.port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        sock = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"host={settings.host} cannot be resolved: {error}") from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on {settings.host} port {settings.port}: {error.strerror}; "
            f"choose another --port, or 0 for any"
        ) from error
    return sock


def _bind_unix(path: str) -> socket.socket:
    """A socket that only the owner of this process may use."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _take_away_dead(path)
        old_mask = os.umask(0o177)
        try:
            sock.bind(path)
        finally:
            os.umask(old_mask)
    except OSError as error:
        sock.close()
        raise ConfigError(
            f"cannot listen on the socket {path}: {error.strerror or error}; choose another --uds"
        ) from error
    return sock


def _take_away_dead(path: str) -> None:
    """Remove a socket that nobody listens on any more; anything else stays where it is."""
    try:
        is_socket = stat.S_ISSOCK(os.stat(path).st_mode)
    except FileNotFoundError:
        return
    if not is_socket:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)


def url_of(sock: socket.socket, settings: ServerSettings | None = None) -> str:
    """Where a person finds the server that has this socket."""
    if sock.family == socket.AF_UNIX:
        return f"unix:{sock.getsockname()}"
    scheme = "http" if settings is None or settings.ssl_certfile is None else "https"
    host, port = sock.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
