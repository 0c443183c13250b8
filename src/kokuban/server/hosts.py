"""Names of servers, as they stand in Host headers, origins and options."""

import ipaddress


def is_loopback(name: str) -> bool:
    """Whether a plain name means this machine and no other can use it."""
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def split_host(host: str) -> tuple[str, str, str]:
    """Name, ":" and port of a Host header; the last two are "" without a port.

    What has something else in the place of a port has no name: "".
    """
    name, colon, port = host.rpartition(":")
    if host.endswith("]") or not colon:
        return host, "", ""
    return (name, colon, port) if port.isascii() and port.isdecimal() else ("", "", "")


def plain_name(name: str) -> str:
    """The form in which names are compared: lower case, no final dot, no brackets."""
    name = name.lower().removesuffix(".").strip("[]")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name
