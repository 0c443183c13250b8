"""docs/cli.md names every command and option that there is, and none that there is not; the page
for those who come from another server names none that there is not.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from kokuban.cli import app

DOCS = Path(__file__).resolve().parents[2] / "docs"
TEXT = (DOCS / "cli.md").read_text()
SECTIONS = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL))


def commands(prefix: str = "", command: click.Command = app) -> Iterator[tuple[str, list[str]]]:
    """Full names of all commands, with the names of their options."""
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            assert child is not None
            yield from commands(f"{prefix} {name}".strip(), child)
    else:
        names = [name for each in command.params for name in (*each.opts, *each.secondary_opts)]
        yield prefix, [name for name in names if name[0] == "-"]


COMMANDS = dict(commands())


def section_of(command: str) -> str:
    """The section whose title lists the command, or the group that it is in."""
    name = command.split()[0]
    [text] = [text for title, text in SECTIONS.items() if name in title.split(", ")]
    return text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_document_has_every_option_of_a_command(command: str) -> None:
    text = section_of(command)

    missing = [name for name in COMMANDS[command] if f"`{name}`" not in text]

    assert f"kokuban {command}" in text
    assert missing == []


def test_the_document_has_no_option_that_does_not_exist() -> None:
    known = {name for names in COMMANDS.values() for name in names} | {"--help", "--version", "-h"}

    named = set(re.findall(r"(?<![\w-])--?[a-z][a-z0-9-]*", TEXT))

    assert named - known == set()
    assert len(named) > 20, "the test does not see options any more"


def test_the_page_for_newcomers_names_no_option_of_ours_that_does_not_exist() -> None:
    """In docs/migration.md our options stand in the second column."""
    page = (DOCS / "migration.md").read_text().splitlines()
    known = {name for names in COMMANDS.values() for name in names}
    rows = [line.split("|") for line in page if line.startswith("| ")]

    named = {
        name
        for row in rows
        if not row[1].strip().startswith("---")
        for name in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", row[2])
    }

    assert named - known == set()
    assert len(named) > 20, "the test does not see options any more"
