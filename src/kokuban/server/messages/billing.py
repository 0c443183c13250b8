"""Claude Code's billing line, which would keep every prompt from being found in the cache.

Its system prompt begins with a line such as

    x-anthropic-billing-header: cc_version=2.1.37.fbe; cc_entrypoint=cli; cch=a1b2c;

that differs from request to request. It says nothing to a model, and whatever stands behind it
would have to be computed again each time.
"""

MARK = "x-anthropic-billing-header:"


def without_line(text: str) -> str:
    """A system message without a billing line at its beginning."""
    if not text.startswith(MARK):
        return text
    return text.partition("\n")[2].lstrip("\r\n")
