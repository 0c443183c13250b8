"""Refuses JSON schemas that could not be followed to the letter, before anything is built."""

from collections.abc import Iterable, Iterator, Mapping

from kokuban.core.errors import RequestError

MAX_DEPTH = 100
"""Objects and lists inside each other: what reads a schema goes as deep as it does."""

MAX_NODES = 20_000
"""Values of a schema, of whatever kind."""


def check_schema(schema: object, param: str | None = None) -> Mapping[str, object] | bool:
    """The schema itself, if a grammar can be made of it.

    Args:
        schema: parsed JSON.
        param: the request field that it came in.

    Raises:
        RequestError: it is no schema, too deep, too large or has no valid value.
    """
    name = param or "the schema"
    if isinstance(schema, str | int | float | list) and not isinstance(schema, bool):
        kind = type(schema).__name__
        raise RequestError(f"{name}: a JSON schema is an object, not a {kind}", param=param)
    if not isinstance(schema, Mapping | bool):
        raise RequestError(f"{name}: there is no JSON schema", param=param)
    if schema is False:
        raise RequestError(f"{name}: no JSON value is valid under the schema false", param=param)
    for num_nodes, (depth, _) in enumerate(_nodes(schema), 1):
        if depth > MAX_DEPTH:
            raise RequestError(
                f"{name}: the schema is nested deeper than {MAX_DEPTH}; flatten it, or use $ref",
                param=param,
            )
        if num_nodes > MAX_NODES:
            raise RequestError(
                f"{name}: the schema has more than {MAX_NODES} values; make it smaller",
                param=param,
            )
    return schema


def _nodes(schema: object) -> Iterator[tuple[int, object]]:
    """Every value with its depth. Never deeper than one call, whatever the schema is."""
    waiting = [(1, schema)]
    while waiting:
        depth, value = waiting.pop()
        yield depth, value
        children = value.values() if isinstance(value, Mapping) else value
        if isinstance(children, Iterable) and not isinstance(children, str):
            waiting += [(depth + 1, child) for child in children]
