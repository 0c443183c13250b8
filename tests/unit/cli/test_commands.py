"""Commands are declared by functions; a group imports those that are asked for."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import click
import pytest
from click.testing import CliRunner

from kokuban.cli import app
from kokuban.cli.commands import Argument, Group, Option, command, with_options
from kokuban.cli.http_options import HttpOptions


def given_to(function: Callable[..., None], *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(command("paint", function), words)
    return done.exit_code, done.output


def paint(
    rooms: Annotated[int, Argument(help="How many.")],
    colour: Annotated[str, Option(help="Of the walls.")] = "white",
    coats: Annotated[int | None, Option("-c", "--coats", least=1, help="Of paint.")] = None,
    width_m: Annotated[float, Option(help="Of the brush.", metavar="METRES")] = 0.1,
    plan: Annotated[Path | None, Option(help="A drawing.")] = None,
    helper: Annotated[list[str] | None, Option(help="A name; may be repeated.")] = None,
    wet: Annotated[bool, Option("--wet/--dry", help="Whether to wait.")] = True,
) -> None:
    """Paint a house.

    All of it.
    """
    click.echo(repr((rooms, colour, coats, width_m, plan, helper, wet)))


def test_what_is_left_out_has_the_functions_default() -> None:
    assert given_to(paint, "3") == (0, "(3, 'white', None, 0.1, None, None, True)\n")


def test_what_is_given_has_the_type_that_the_function_names() -> None:
    words = [
        "--colour",
        "red",
        "-c",
        "2",
        "--width-m",
        "1",
        "--plan",
        "p",
        "--helper",
        "a",
        "--helper",
        "b",
        "--dry",
        "3",
    ]

    assert given_to(paint, *words) == (
        0,
        f"(3, 'red', 2, 1.0, {Path('p')!r}, ['a', 'b'], False)\n",
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("x", "Invalid value for 'ROOMS': 'x' is not a valid integer."),
        ("3 --coats 0", "Invalid value for '-c' / '--coats': 0 is not in the range x>=1."),
        ("3 --width-m wide", "Invalid value for '--width-m': 'wide' is not a valid float."),
        ("3 --color red", "No such option '--color'. Did you mean '--colour'?"),
        ("3 4", "Got unexpected extra argument (4)"),
        ("", "Missing argument 'ROOMS'."),
    ],
)
def test_what_cannot_be_is_refused_by_name(words: str, text: str) -> None:
    code, output = given_to(paint, *words.split())

    assert (code, output.splitlines()[-1]) == (2, f"Error: {text}")


def test_the_help_has_the_functions_words_and_the_defaults() -> None:
    code, output = given_to(paint, "--help")

    assert code == 0
    text = " ".join(output.split())
    assert "Paint a house. All of it." in text
    assert "ROOMS How many." in text
    assert "--colour TEXT Of the walls. [default: white]" in text
    assert "--width-m METRES Of the brush. [default: 0.1]" in text
    assert "--plan PATH A drawing. --helper" in text
    assert command("paint", paint).get_short_help_str() == "Paint a house."


def test_a_check_sees_the_value_and_may_change_it() -> None:
    def double(value: int) -> int:
        return 2 * value

    def run(count: Annotated[int, Option(check=double, help="A number.")] = 1) -> None:
        click.echo(count)

    assert given_to(run) == (0, "2\n")
    assert given_to(run, "--count", "4") == (0, "8\n")


def test_a_command_may_have_the_attributes_of_a_class_as_options() -> None:
    @with_options(HttpOptions)
    def run(
        context: click.Context, name: Annotated[str, Option(help="A.")] = "n", **more: object
    ) -> None:
        assert context.params == {"name": name, **more}
        click.echo(f"{name} {more['drain']} {more['api_key']} {more['strict']}")

    words = ["--drain", "2", "--name", "m", "--api-key", "a", "--api-key", "b"]
    assert given_to(run, *words) == (0, "m 2.0 ['a', 'b'] False\n")


def test_a_group_imports_the_command_that_is_asked_for() -> None:
    house = Group({"antigravity": "no_such_module:f", "sub": Group({}, help="More.")}, help="Work.")
    context = click.Context(house)

    assert house.list_commands(context) == ["antigravity", "sub"]
    assert isinstance(house.get_command(context, "sub"), Group)
    assert house.get_command(context, "paint") is None
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        house.get_command(context, "antigravity")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("srve", "No such command 'srve'. Did you mean 'serve'?"),
        ("bench kernel", "No such command 'kernel'. Did you mean 'kernels'?"),
        ("xyzzy", "No such command 'xyzzy'."),
        ("--serve", "No such option '--serve'."),
    ],
)
def test_a_command_that_does_not_exist_is_told_with_the_one_that_may_be_meant(
    words: str, text: str
) -> None:
    done = CliRunner().invoke(app, words.split())

    assert done.exit_code == 2
    assert done.output.splitlines()[-1].startswith(f"Error: {text}")


def test_a_group_without_a_command_tells_its_commands() -> None:
    done = CliRunner().invoke(app, ["cache"])

    assert done.exit_code == 2
    assert "List the namespaces" in done.output
