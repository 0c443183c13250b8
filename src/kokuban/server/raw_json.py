"""JSON that is looked into without being read whole."""

import msgspec

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for what is no JSON, or is nested deeper than it can follow."""
