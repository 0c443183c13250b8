"""Checks of text that comes from outside.

A lone surrogate (half of an emoji escape in JSON) is legal in JSON and in a Python str, and in no
encoding: it is refused everywhere, in every field, with one text. U+0000 is a character like any
other and passes.
"""

from collections.abc import Mapping
from typing import Any

from kokuban.core.errors import RequestError

MAX_DEPTH = 64
"""Levels of nesting in a client's JSON value."""


def check_text(text: str, param: str) -> str:
    """Return the text.

    Raises:
        RequestError: it holds a lone surrogate; names the field and the place.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{param} holds half of a surrogate pair (U+{ord(text[error.start]):04X}) at character "
            f"{error.start}, which is no character; send the whole pair or U+FFFD",
            param=param,
        ) from None
    return text


def check_json(value: Any, param: str, depth: int = 0) -> Any:
    """Return a copy of a JSON value in which every text, keys included, has been checked.

    Raises:
        RequestError: a lone surrogate, nesting that is too deep, or a value that is no JSON.
    """
    if depth > MAX_DEPTH:
        raise RequestError(f"{param} is nested more than {MAX_DEPTH} levels deep", param=param)
    if isinstance(value, str):
        return check_text(value, param)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {
            check_text(str(key), param): check_json(item, f"{param}.{key}", depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [
            check_json(item, f"{param}[{index}]", depth + 1) for index, item in enumerate(value)
        ]
    raise RequestError(f"{param} holds a {type(value).__name__}, which is no JSON", param=param)
