"""The values of `format` as regular expressions that all have to match.

Those of llguidance let wrong dates, leap seconds and some addresses through; these do not.

Source: RFC 3339 (dates and times), RFC 4291 (IPv6), RFC 5321 (mail).
"""

from collections.abc import Iterator, Mapping

KEPT_FORMATS = frozenset({"ipv4", "uuid", "uri", "duration"})
"""Those that llguidance reads as their RFC says."""

_BYTE = r"(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"


def _date() -> str:
    by_four = r"(0[48]|[2468][048]|[13579][26])"
    leap = rf"([0-9]{{2}}{by_four}|(00|{by_four})00)"
    return (
        r"([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
        r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
        rf"|{leap}-02-29)"
    )


def _hours(sign: int) -> Iterator[str]:
    """A leap second is 23:59:60 of UTC: the hour that a clock shows then, for each offset."""
    for offset in range(24):
        mark = "+" if sign > 0 else "-"
        on_the_hour = (23 + sign * offset) % 24
        # With minutes in the offset the clock has passed an hour more, or one less has passed.
        other = (on_the_hour + 1) % 24 if sign > 0 else on_the_hour
        yield f"{on_the_hour:02}:..:60(\\.[0-9]+)?\\{mark}{offset:02}:00"
        yield f"{other:02}:..:60(\\.[0-9]+)?\\{mark}{offset:02}:(0[1-9]|[1-5][0-9])"


def _minutes(sign: int) -> Iterator[str]:
    """Likewise the minute."""
    mark = "+" if sign > 0 else "-"
    for offset in range(60):
        yield f"..:{(59 + sign * offset) % 60:02}:60(\\.[0-9]+)?\\{mark}..:{offset:02}"


_CLOCK = r"([01][0-9]|2[0-3]):[0-5][0-9]"
_ZONE = r"([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_PLAIN = rf"{_CLOCK}:[0-5][0-9](\.[0-9]+)?{_ZONE}"
_LEAP_Z = r"23:59:60(\.[0-9]+)?[zZ]"


def _times(before: str) -> tuple[str, ...]:
    """A time behind `before`. With a leap second hour and minute must both fit the offset."""
    hours = "|".join([*_hours(1), *_hours(-1)])
    minutes = "|".join([*_minutes(1), *_minutes(-1)])
    return tuple(f"^{before}({_PLAIN}|{_LEAP_Z}|{leap})$" for leap in (hours, minutes))


def _ipv6() -> str:
    h = "[0-9a-fA-F]{1,4}"
    last = f"({h}:{h}|{_IPV4})"
    forms = [f"({h}:){{6}}{last}", f"::({h}:){{5}}{last}"]
    for num_before in range(1, 6):
        before = f"({h}(:{h}){{0,{num_before - 1}}})?"
        num_after = 5 - num_before
        forms.append(f"{before}::({h}:){{{num_after}}}{last}")
    forms += [f"({h}(:{h}){{0,5}})?::{h}", f"({h}(:{h}){{0,6}})?::"]
    return "(" + "|".join(forms) + ")"


def _email() -> str:
    atom = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
    quoted = r'"([\x20\x21\x23-\x5b\x5d-\x7e]|\\[\x20-\x7e])*"'
    label = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
    domain = rf"({label}(\.{label})*|\[{_IPV4}\]|\[IPv6:{_ipv6()}\])"
    return rf"({atom}(\.{atom})*|{quoted})@{domain}"


FORMATS: Mapping[str, tuple[str, ...]] = {
    "date": (f"^{_date()}$",),
    "time": _times(""),
    "date-time": _times(f"{_date()}[tT]"),
    "email": (f"^{_email()}$",),
    "ipv6": (f"^{_ipv6()}$",),
}
