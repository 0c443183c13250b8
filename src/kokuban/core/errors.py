"""Every error that Kokuban raises on purpose. The class says whose fault it is.

    KokubanError
    ├── ConfigError        the operator: a setting (exit code 2)
    │   ├── ModelError     the operator: a model file or folder (exit code 2)
    │   └── StoreInUse     a directory that only one process may write
    ├── RequestError       the client: 400
    │   ├── PromptTooLong
    │   ├── UnknownModel   404
    │   └── TemplateError  the chat template refused the messages
    ├── Overloaded         nobody: 429, come back later
    │   ├── ShuttingDown   503
    │   └── EngineRestarting 503
    ├── OutOfBlocks        the KV pool; handled by the scheduler, never shown
    └── StepFailed         this engine: 500 for one request

A text names what was asked, the value, the limit and the way out. Bugs are AssertionError.
"""


class KokubanError(Exception):
    """The root of the tree above."""


class ConfigError(KokubanError):
    """A setting that cannot work."""


class ModelError(ConfigError):
    """A model that cannot be found, read or run."""


class StoreInUse(ConfigError):
    """A directory that another process writes, and only one may."""


class RequestError(KokubanError):
    """A request that can never be served as it stands.

    Args:
        message: what was wrong, with value, limit and way out.
        param: the request field at fault, for the error envelope.
        code: a stable word for programs, such as "context_length_exceeded".
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class PromptTooLong(RequestError):
    """The prompt alone leaves no room for a single new token, or does not fit where none follows.

    Args:
        continues: whether a token must follow.
    """

    def __init__(
        self, num_prompt_tokens: int, max_context_tokens: int, *, continues: bool = True
    ) -> None:
        excess = num_prompt_tokens - max_context_tokens + int(continues)
        room = " and needs room for at least one new token" if continues else ""
        super().__init__(
            f"the prompt has {num_prompt_tokens} tokens, but the context holds "
            f"{max_context_tokens}{room}; shorten the prompt by {excess} tokens or, if the model "
            f"was made for more, start the server with a larger --max-context-tokens or "
            f"--kv-memory",
            param="messages",
            code="context_length_exceeded",
        )
        self.num_prompt_tokens = num_prompt_tokens
        self.max_context_tokens = max_context_tokens


class UnknownModel(RequestError):
    """The request names a model that this server does not serve."""

    def __init__(self, asked: str, served: str) -> None:
        super().__init__(
            f"the model {asked!r} is not served here; this server has {served!r}",
            param="model",
            code="model_not_found",
        )


class TemplateError(RequestError):
    """The chat template refused the messages, or failed on them."""


class Overloaded(KokubanError):
    """The waiting queue is full.

    Args:
        retry_after_s: seconds after which a retry is likely to be admitted.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ShuttingDown(Overloaded):
    """The server drains: it ends what runs and takes nothing new."""


class EngineRestarting(Overloaded):
    """The engine has died and is being started again."""


class OutOfBlocks(KokubanError):
    """The pool has fewer free blocks than were asked for. Nothing has changed."""


class StepFailed(KokubanError):
    """The engine could not finish this request; others go on."""
