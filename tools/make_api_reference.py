"""Writes docs/api-reference.md from the table of parameters.

Run:    python tools/make_api_reference.py [--check]
Checks: that the page is what the table gives (exit code 1 where it is not), and writes nothing.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from kokuban.server.parameter import Api, Fate, Parameter
from kokuban.server.parameters import TABLE

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api-reference.md"

HEAD = """\
# Fields of chat and completions

Made from the table in `src/kokuban/server/parameters.py` by `tools/make_api_reference.py`: change
the table, not this page. What routes there are, and what answers look like: `docs/api.md`.

Types are strict: `"5"` is no number, `true` and `1.0` are no integers. `null` means absent. A field
that is not on this page is left out, and the answer's header `x-kokuban-warning` names it; with
`kokuban serve --strict` it is refused. *From* says whose name a field is.
"""

SERVED = (
    ("Both routes", Api.BOTH),
    ("Only `/v1/chat/completions`", Api.CHAT),
    ("Only `/v1/completions`", Api.COMPLETIONS),
)


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_served(), *_ignored(), *_refused()])


def _served() -> Iterator[str]:
    for title, apis in SERVED:
        yield f"## {title}\n"
        yield from _table(
            ("field", "type", "default", "limits", "what it does", "from"),
            (
                (
                    f"`{each.name}`",
                    each.kind,
                    each.default_words,
                    each.limit_words,
                    each.meaning,
                    each.origin,
                )
                for each in TABLE
                if each.fate is Fate.SERVED and each.apis == apis
            ),
        )


def _ignored() -> Iterator[str]:
    yield "## Accepted, without effect\n"
    yield "They would not change the answer. Their types are checked.\n"
    yield from _table(
        ("field", "route", "type", "why", "from"),
        (
            (f"`{each.name}`", _route(each), each.kind, each.meaning, each.origin)
            for each in TABLE
            if each.fate is Fate.IGNORED
        ),
    )


def _refused() -> Iterator[str]:
    yield "## Refused\n"
    yield (
        "They would change the answer, so they are refused by name with status 400 and code "
        "`unsupported_field`, unless they have the value in brackets, or one that asks\n"
        "for nothing: null, false, or what is empty.\n"
    )
    ways: dict[tuple[str, str, str], list[Parameter]] = {}
    for each in TABLE:
        if each.fate is Fate.REFUSED:
            ways.setdefault((each.meaning, _route(each), each.origin), []).append(each)
    yield from _table(
        ("field", "route", "way out", "from"),
        (
            (", ".join(map(_with_neutral, group)), route, way_out, origin)
            for (way_out, route, origin), group in ways.items()
        ),
    )


def _with_neutral(parameter: Parameter) -> str:
    values = " or ".join(str(value).lower() for value in parameter.neutral[4:])
    return f"`{parameter.name}`" + (f" (but {values})" if values else "")


def _route(parameter: Parameter) -> str:
    return {Api.BOTH: "both", Api.CHAT: "chat"}.get(parameter.apis, "completions")


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    head = list(head)
    yield _row(head)
    yield _row("---" for _ in head)
    for row in rows:
        yield _row(row)
    yield ""


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    text = page()
    if not arguments.check:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("docs/api-reference.md is not what the table gives; run tools/make_api_reference.py")
        sys.exit(1)


if __name__ == "__main__":
    main()
