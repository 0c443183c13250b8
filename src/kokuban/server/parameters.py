"""The table of every field that chat and completions know, and what is asked of it.

One entry for each name and API, the only place where its meaning, its limits and what becomes of it
stand. From it come the checks of the bodies (`openai_models`), the OpenAPI document, the page
`docs/api-reference.md` and the fuzz tests. A name that is not in it is unknown: it is left out and
named in a header, or refused where the operator wants that (`--strict`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, Field

from kokuban.core.errors import RequestError
from kokuban.core.parameters import RANGES
from kokuban.server.parameter import REQUIRED, Api, Fate, Parameter
from kokuban.server.parameters_other import OTHER
from kokuban.server.parameters_served import SERVED

TABLE: tuple[Parameter, ...] = (*SERVED, *OTHER)

_SERVED: Mapping[tuple[str, Api], Parameter] = {
    (parameter.name, api): parameter for parameter in SERVED for api in parameter.apis
}
_OTHER: Mapping[tuple[str, Api], Parameter] = {
    (parameter.name, api): parameter for parameter in OTHER for api in parameter.apis
}


def of(name: str, api: Api = Api.CHAT, **more: Any) -> Any:
    """A body's field as the table declares it: meaning, default and limits.

    What `SamplingParams` checks is described here and not checked a second time: its message lists
    every problem at once.

    Args:
        api: where the field means something else in another API.
        more: further arguments of pydantic's `Field`.
    """
    parameter = _SERVED.get((name, api)) or _SERVED[name, Api.COMPLETIONS]
    shown: dict[str, Any] = dict(parameter.shape)
    if parameter.default not in (None, REQUIRED):
        shown["default"] = parameter.default
    limits = parameter.limits
    if limits is not None and name in RANGES:
        shown["exclusiveMinimum" if limits.is_open else "minimum"] = limits.low
        shown["maximum"] = limits.high
    elif limits is not None:
        more |= {"ge": limits.low, "le": limits.high}
    if parameter.max_length is not None:
        more["max_length"] = parameter.max_length
    if parameter.min_length:
        more["min_length"] = parameter.min_length
    default = ... if parameter.default == REQUIRED else None
    return Field(default, description=parameter.meaning, json_schema_extra=shown, **more)


def check_extras(body: BaseModel, apis: Api) -> None:
    """Look at the fields that the body's model does not declare.

    Raises:
        RequestError: one that this server cannot serve, or one of the wrong type.
    """
    for name, value in (body.model_extra or {}).items():
        parameter = _other(name, apis)
        if parameter is None:
            continue
        if parameter.fate is Fate.REFUSED and not parameter.asks_nothing(value):
            raise RequestError(f"{name}: {parameter.meaning}", param=name, code="unsupported_field")
        if not parameter.takes(value):
            raise RequestError(f"{name} must be of type {parameter.kind}", param=name)


def unknown_fields(body: BaseModel, apis: Api) -> Iterator[str]:
    """Paths of the fields that nobody here knows, also inside objects.

    Messages, parts and tools are free: what they hold beyond the protocol goes to the template.
    """
    for name in body.model_extra or {}:
        if _other(name, apis) is None:
            yield name
    for name in body.model_fields_set:
        value = getattr(body, name)
        if isinstance(value, BaseModel):
            yield from (f"{name}.{inner}" for inner in value.model_extra or {})


def known_names(apis: Api) -> list[str]:
    """Every name in the table."""
    return [name for name, api in (*_SERVED, *_OTHER) if api in apis]


def _other(name: str, apis: Api) -> Parameter | None:
    for api in apis:
        if found := _OTHER.get((name, api)):
            return found
    return None
