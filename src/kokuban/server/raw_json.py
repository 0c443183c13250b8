"""JSON that is looked into without being read whole."""

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for what is no JSON, or is nested deeper than it can follow."""


def json_object(text: str) -> msgspec.Raw | None:
    """The JSON text of an object as it is; None for what is none.

    Arguments of a call may be anything: a model writes them, and may be cut off.
    """
    try:
        msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except UNREADABLE:
        return None
    return msgspec.Raw(text.encode())
