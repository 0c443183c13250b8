"""Options of a command that belong together, written down as the fields of a class.

    @dataclass(frozen=True)
    class Paint:
        colour: Annotated[str, typer.Option(help="Of the wall.")] = "white"

    @with_options(Paint)
    def house(context: typer.Context, **given: object) -> None: ...

The command sees them in `context.params`, by name.
"""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any, TypeVar, get_type_hints

CommandT = TypeVar("CommandT", bound=Callable[..., None])


def with_options(*groups: type) -> Callable[[CommandT], CommandT]:
    """Give a command the options of dataclasses, all of which have defaults, behind its own."""

    def add(command: CommandT) -> CommandT:
        signature = inspect.signature(command)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        annotations = {p.name: p.annotation for p in own}
        added = []
        for group in groups:
            hints = get_type_hints(group, include_extras=True)
            for each in fields(group):
                assert each.default is not MISSING, f"the option {each.name} has no default"
                annotations[each.name] = hints[each.name]
                added.append(
                    inspect.Parameter(
                        each.name,
                        inspect.Parameter.KEYWORD_ONLY,
                        default=each.default,
                        annotation=hints[each.name],
                    )
                )
        target: Any = command
        target.__signature__ = signature.replace(parameters=[*own, *added])
        target.__annotations__ = {**annotations, "return": None}
        return command

    return add
