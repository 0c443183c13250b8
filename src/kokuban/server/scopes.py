"""What a key may be allowed to do. Every route says which of these it takes."""

import enum


class KeyScope(enum.StrEnum):
    """The right that a route wants."""

    PUBLIC = "public"
    """None: the route answers without a key."""

    ANY = "any"
    """A key, whatever it may do."""

    INFER = "infer"
    """To use the model, and to ask about one's own requests and sessions."""

    METRICS = "metrics"
    """To read the numbers of the whole server."""

    ADMIN = "admin"
    """To change what all tenants share, and to see what the cache does for all of them."""


GRANTED = frozenset({KeyScope.INFER, KeyScope.METRICS, KeyScope.ADMIN})
"""Those that a key may have."""
EVERYBODY_MAY = frozenset({KeyScope.INFER, KeyScope.METRICS})
"""What needs no key on a server without keys; also what a key of `--api-key` may do."""
