"""The Jinja environment that runs chat templates, which come from model files and are not trusted.

Jinja's immutable sandbox keeps templates away from attributes that lead out and from changing what
they are given. On top of it: an unsafe attribute is an error at once and not an empty text; nothing
can be loaded or included; work and size are bounded by counting, not by time, so that the same
template and messages always give the same outcome. A loop step counts 1, a filter or a call 1 and
a share of the length of what it works on.

Helpers are those that model authors rely on: `raise_exception`, `strftime_now`, `tojson` with the
keys in their order and no ASCII escapes, `break` and `continue`, and the `generation` tag, which
here writes its body.
"""

import contextlib
import contextvars
import datetime as dt
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context, Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_STEPS = 1_000_000
MAX_CHARS = 16_000_000
"""Longest text that a template may make, the prompt included."""

_MAX_WIDTH = 1_000
_MAX_BITS = 10_000
_WIDE = frozenset(("center", "indent", "tojson", "batch", "slice", "wordwrap"))
_CHARS_A_STEP = 64
_ITEMS_A_STEP = 4
_WIDE_FORMAT = re.compile(r"%[^%a-zA-Z]*(?:\d{4,}|\*)|\{[^{}]*:[^{}]*(?:\d{4,}|\{)")
_STEPS: contextvars.ContextVar["_Steps"] = contextvars.ContextVar("template_steps")

Clock = Callable[[], dt.datetime]


class TooMuchWork(jinja2.TemplateError):
    """The template did more than a chat template needs to."""


class _Steps:
    """Work that is left in one rendering."""

    def __init__(self, limit: int) -> None:
        self._limit = self._left = limit

    def take(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise TooMuchWork(f"the chat template took more than {self._limit} steps")


@contextlib.contextmanager
def counting(limit: int = MAX_STEPS) -> Iterator[None]:
    """Bound the work of what is rendered inside."""
    token = _STEPS.set(_Steps(limit))
    try:
        yield
    finally:
        _STEPS.reset(token)


class _GenerationTag(Extension):
    """`{% generation %}` marks the assistant's text for training; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        parser.stream.skip()
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """See the module.

    Args:
        now: the clock of `strftime_now`.
    """

    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self, now: Clock) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _GenerationTag]
        )
        self.filters["tojson"] = _to_json
        self.filters = {name: _counted(name, function) for name, function in self.filters.items()}
        self.filters["counted_loop"] = _counted_loop
        self.filters["bounded_text"] = _bounded
        del self.globals["lipsum"]
        self.globals |= {
            "range": _counted_range,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now().strftime(form),
        }

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template = super()._parse(source, name, filename)
        _Counting().visit(template)
        return template

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        raise SecurityError(
            f"the chat template asks for {attribute!r} of a {type(obj).__name__}, which is unsafe"
        )

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator in ("*", "**"):
            _check_product(operator, left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return _bounded(super().call_binop(context, operator, left, right))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, str | bytes | list | tuple | dict):
            _charge(owner)
            _check_method(owner, getattr(obj, "__name__", ""), args)
        else:
            _take(1)
        return _bounded(super().call(context, obj, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped


class _Counting(NodeTransformer):
    """Puts a count or a bound where the language loops or grows text without a call."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = _filter(node.iter, "counted_loop")
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        return _filter(self.generic_visit(node), "bounded_text")

    def visit_AssignBlock(self, node: nodes.AssignBlock) -> nodes.Node:
        node.filter = _filter(node.filter, "bounded_text")
        return self.generic_visit(node)


def _filter(node: nodes.Node | None, name: str) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=getattr(node, "lineno", 1))


def _take(count: int) -> None:
    if (steps := _STEPS.get(None)) is not None:
        steps.take(count)


def _charge(value: Any) -> None:
    share = _CHARS_A_STEP if isinstance(value, str | bytes) else _ITEMS_A_STEP
    _take(1 + (len(value) // share if isinstance(value, Sized) else 0))


def _counted_loop(iterable: Iterable[Any]) -> Iterable[Any]:
    if isinstance(iterable, Undefined):
        return iterable
    return _CountedLoop(iterable) if isinstance(iterable, Sized) else _count(iterable)


class _CountedLoop:
    """Keeps the length, so that `loop.length` does not walk through it."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Any]:
        return _count(self._items)


def _count(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        _take(1)
        yield item


def _counted_range(*args: int) -> range:
    numbers = range(*args)
    if len(numbers) > MAX_STEPS:
        raise TooMuchWork(f"the chat template asks for a range of {len(numbers)} numbers")
    _charge(numbers)
    return numbers


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that is charged for the length of its value, and bounded."""
    position = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        value = args[position] if len(args) > position else None
        _charge(value)
        rest = [*args[position + 1 :], *kwargs.values()]
        if name == "format":
            _check_format(str(value))
        elif name in ("join", "replace"):
            _check_method(value, name, rest)
        elif name in _WIDE and any(isinstance(x, int) and x > _MAX_WIDTH for x in rest):
            raise TooMuchWork(f"the chat template asks for a width above {_MAX_WIDTH}")
        return _bounded(function(*args, **kwargs))

    return run


def _bounded(value: Any) -> Any:
    if isinstance(value, str | list | tuple) and len(value) > MAX_CHARS:
        raise TooMuchWork(f"the chat template makes a text above {MAX_CHARS} characters")
    return value


def _check_product(operator: str, left: Any, right: Any) -> None:
    sizes = [len(side) for side in (left, right) if isinstance(side, str | list | tuple)]
    counts = [side for side in (left, right) if isinstance(side, int)]
    if sizes and counts and sizes[0] * counts[0] > MAX_CHARS:
        raise TooMuchWork(f"the chat template makes a text above {MAX_CHARS} characters")
    if len(counts) == 2:
        bits = (
            left.bit_length() * right if operator == "**" else sum(c.bit_length() for c in counts)
        )
        if bits > _MAX_BITS:
            raise TooMuchWork(f"the chat template makes a number above {_MAX_BITS} bits")


def _check_format(form: str) -> None:
    if _WIDE_FORMAT.search(form):
        raise TooMuchWork(f"the chat template formats with a width above {_MAX_WIDTH - 1}")


def _check_method(owner: Any, name: str, args: Any) -> None:
    """Refuse calls whose result would be out of proportion to what they are given."""
    size = 0
    if name == "replace" and isinstance(owner, str) and len(args) >= 2:
        size = owner.count(str(args[0])) * len(str(args[1]))
    elif name == "join":
        size = _joined_size(owner, args)
    elif name in ("center", "ljust", "rjust", "zfill", "expandtabs"):
        size = MAX_CHARS * any(isinstance(arg, int) and arg > _MAX_WIDTH for arg in args)
    if size >= MAX_CHARS:
        raise TooMuchWork(f"the chat template makes a text above {MAX_CHARS} characters")


def _joined_size(owner: Any, args: Any) -> int:
    """Characters of `separator.join(items)`, or of the filter `items | join(separator)`."""
    separator, items = (owner, args[0]) if isinstance(owner, str) and args else (args, owner)
    if isinstance(separator, list | tuple):
        separator = separator[0] if separator else ""
    if not isinstance(items, list | tuple):
        return 0
    texts = sum(len(item) for item in items if isinstance(item, str))
    return texts + len(items) * len(str(separator))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's own, which escapes for HTML and sorts the keys."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
        default=_plain,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)
