"""Writes a regular expression of JSON Schema, which is JavaScript's, as llguidance reads it."""

_SPACES = (
    r"\t\n\x0b\x0c\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}"
    r"\u{feff}"
)


def ecma_pattern(pattern: str) -> str:
    r"""The same pattern with \s and \S meaning JavaScript's white space, U+FEFF included."""
    made, in_class, index = [], False, 0
    while index < len(pattern):
        mark = pattern[index]
        if mark == "\\" and index + 1 < len(pattern):
            made.append(_escape(pattern[index + 1], in_class=in_class))
            index += 2
            continue
        if mark == "[" and not in_class:
            in_class = True
        elif mark == "]":
            in_class = False
        made.append(mark)
        index += 1
    return "".join(made)


def _escape(mark: str, *, in_class: bool) -> str:
    if mark == "s":
        return _SPACES if in_class else f"[{_SPACES}]"
    return f"[^{_SPACES}]" if mark == "S" else "\\" + mark
