"""The address of a server, taken before its model is loaded and its libraries are imported."""

import socket

from kokuban.core.errors import ConfigError
from kokuban.server.settings import ServerSettings


def bind(settings: ServerSettings) -> socket.socket:
    """Take the address before the model is loaded: what is in use is known at once.

    The socket does not listen yet, so that clients are refused rather than kept waiting.

    Raises:
        ConfigError: the address cannot be had.
    """
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


def url_of(sock: socket.socket) -> str:
    """Where a person finds the server that has this socket."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
