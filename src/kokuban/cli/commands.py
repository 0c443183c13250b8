"""Commands, declared by the functions that do them.

    def paint(
        rooms: Annotated[int, Argument(help="How many.")],
        colour: Annotated[str, Option(help="Of the walls.")] = "white",
    ) -> None:
        '''Paint a house.'''

    house = Group({"paint": "somewhere:paint"}, help="Work on a house.")

A function that wants all that was given, by name, takes a `click.Context`. A group imports a
command when somebody asks for it: starting a server loads nothing of the benchmarks.
"""

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

import click

_GROUPS = "__option_groups__"
_HELP_NAMES = {"help_option_names": ["-h", "--help"]}

CommandT = TypeVar("CommandT", bound=Callable[..., None])


class Option:
    """How a parameter is given by name.

    Args:
        names: the parameter's own by default. `--on/--off` makes a switch of both.
        help: one sentence.
        metavar: stands for the value in the help.
        least: of a number.
        check: takes the value, gives what the function gets, and may raise.
    """

    def __init__(
        self,
        *names: str,
        help: str,
        metavar: str | None = None,
        least: float | None = None,
        check: Callable[[Any], Any] | None = None,
    ) -> None:
        self.names = names
        self.help = help
        self.metavar = metavar
        self.least = least
        self.check = check

    def parameter(self, name: str, kind: Any, default: Any) -> click.Parameter:
        """Of a function's parameter: its type, and its default."""
        value_type, repeats = _type_of(kind)
        switch = value_type is bool
        return click.Option(
            [*(self.names or ("--" + name.replace("_", "-"),)), name],
            type=None if switch else _click_type(value_type, self.least),
            default=default,
            is_flag=switch,
            multiple=repeats,
            show_default=not switch and default not in (None, ""),
            callback=self._callback(repeats),
            metavar=self.metavar,
            help=self.help,
        )

    def _callback(self, repeats: bool) -> Callable[..., Any] | None:
        check = self.check
        if repeats:
            return lambda _context, _parameter, values: list(values) or None
        if check is not None:
            return lambda _context, _parameter, value: check(value)
        return None


class Argument:
    """How a parameter is given by its place."""

    def __init__(self, *, help: str, metavar: str | None = None) -> None:
        self.help = help
        self.metavar = metavar

    def parameter(self, name: str, kind: Any, default: Any) -> click.Parameter:
        """Of a function's parameter: its type, and its default."""
        optional = {} if default is inspect.Parameter.empty else {"default": default}
        return click.Argument(
            [name],
            type=_click_type(_type_of(kind)[0]),
            metavar=self.metavar,
            help=self.help,
            **optional,
        )


def with_options(*groups: type) -> Callable[[CommandT], CommandT]:
    """Give a command further options: annotated attributes of classes, with their defaults."""

    def add(function: CommandT) -> CommandT:
        setattr(function, _GROUPS, groups)
        return function

    return add


def command(name: str, function: Callable[..., None]) -> click.Command:
    """The command that does what a function does; its documentation is the help."""
    hints = get_type_hints(function, include_extras=True)
    text = inspect.getdoc(function) or ""
    takes_context = any(kind is click.Context for kind in hints.values())
    return click.Command(
        name,
        callback=click.pass_context(function) if takes_context else function,
        params=[*_own(function, hints), *_of_groups(function)],
        help=text,
        short_help=" ".join(text.split("\n\n")[0].split()),
    )


def _own(function: Callable[..., None], hints: Mapping[str, Any]) -> Iterator[click.Parameter]:
    for each in inspect.signature(function).parameters.values():
        if get_origin(hints[each.name]) is Annotated:
            kind, declared = get_args(hints[each.name])
            yield declared.parameter(each.name, kind, each.default)


def _of_groups(function: Callable[..., None]) -> Iterator[click.Parameter]:
    for group in getattr(function, _GROUPS, ()):
        hints = get_type_hints(group, include_extras=True)
        for name, hint in hints.items():
            kind, declared = get_args(hint)
            yield declared.parameter(name, kind, getattr(group, name))


def _type_of(kind: Any) -> tuple[type, bool]:
    """The type of a value, and whether there may be several: of `X`, `X | None`, `list[X]`."""
    if NoneType in get_args(kind):
        [kind] = [each for each in get_args(kind) if each is not NoneType]
    return (get_args(kind)[0], True) if get_origin(kind) is list else (kind, False)


def _click_type(value_type: type, least: float | None = None) -> click.ParamType[Any]:
    if value_type is int:
        return click.INT if least is None else click.IntRange(min=int(least))
    if value_type is float:
        return click.FLOAT if least is None else click.FloatRange(min=least)
    return click.Path(path_type=Path) if value_type is Path else click.STRING


class Group(click.Group):
    """Commands under one name.

    Args:
        places: module and function of each command, as `module:function`, or another group.
    """

    def __init__(self, places: "Mapping[str, str | Group]", **facts: Any) -> None:
        super().__init__(no_args_is_help=True, context_settings=_HELP_NAMES, **facts)
        self._places = places

    def list_commands(self, _context: click.Context) -> list[str]:
        return list(self._places)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        place = self._places.get(name)
        if not isinstance(place, str):
            return place
        if name not in self.commands:
            module, function = place.split(":")
            self.add_command(command(name, getattr(importlib.import_module(module), function)))
        return self.commands[name]

    def resolve_command(
        self, context: click.Context, words: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if words[0] not in self._places and not context.resilient_parsing:
            raise click.NoSuchCommand(words[0], possibilities=self._places, ctx=context)
        return super().resolve_command(context, words)
