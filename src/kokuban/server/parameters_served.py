"""The fields that do something. See `server.parameters`."""

from kokuban.core.parameters import MAX_LOGPROBS, MOST_TOKENS, RANGES, Range
from kokuban.core.sampling_params import MAX_STOPS
from kokuban.server.parameter import REQUIRED, Api, Parameter
from kokuban.server.parameters_form import FORM
from kokuban.server.schema_parts import BIASES, VARIABLES

MAX_BIASES = 1024
MAX_STOP_LENGTH = 1024
MAX_TOOLS = 256
MAX_SALT_LENGTH = 1024
MAX_BEST_OF = 20
"""OpenAI's limit."""

MAX_SESSION_LENGTH = 256
"""Characters of a session's id."""

_ANSWER = (
    Parameter(
        name="model",
        kind="string",
        meaning="The served name, or one of its other names; see `/v1/models`. Absent or empty: "
        "the served model.",
    ),
    Parameter(
        name="stream",
        kind="boolean",
        meaning="Send the answer as server-sent events while it is made.",
        default=False,
    ),
    Parameter(
        name="stream_options",
        kind="object",
        meaning="Only with `stream`. `include_usage`: a last chunk with the usage. "
        "`continuous_usage_stats` (vLLM), only with it: usage in every chunk. "
        "`include_obfuscation`: without effect, nothing is padded.",
    ),
    Parameter(
        name="n",
        kind="integer",
        meaning="Choices of one prompt, each with random numbers of its own.",
        default=1,
        limits=RANGES["n"],
    ),
    Parameter(
        name="user",
        kind="string",
        meaning="Not used: the API key says who asks.",
    ),
)

_LENGTH = (
    Parameter(
        name="max_tokens",
        kind="integer",
        meaning="Most new tokens; cut to what the context holds. Absent: to the end of the "
        "context.",
        apis=Api.CHAT,
        limits=Range(1, MOST_TOKENS, whole=True),
    ),
    Parameter(
        name="max_completion_tokens",
        kind="integer",
        meaning="The newer name of `max_tokens`. When both are given, the smaller one counts.",
        apis=Api.CHAT,
        limits=Range(1, MOST_TOKENS, whole=True),
    ),
    Parameter(
        name="max_tokens",
        kind="integer",
        meaning="Most new tokens; cut to what the context holds. 0 only with `echo`.",
        apis=Api.COMPLETIONS,
        default=16,
        limits=RANGES["max_tokens"],
    ),
    Parameter(
        name="min_tokens",
        kind="integer",
        meaning="End and stop tokens are impossible before this many new tokens.",
        origin="vLLM",
        default=0,
        limits=RANGES["min_tokens"],
    ),
    Parameter(
        name="stop",
        kind="string or array of strings",
        meaning=f"Strings that end the text and are not part of it: at most {MAX_STOPS}, none "
        f"empty, each of at most {MAX_STOP_LENGTH:,} characters.",
        shape={"minLength": 1, "maxLength": MAX_STOP_LENGTH, "maxItems": MAX_STOPS},
    ),
    Parameter(
        name="stop_token_ids",
        kind="array of integers",
        meaning="Tokens that end the text.",
        origin="vLLM",
        max_length=MAX_BIASES,
    ),
    Parameter(
        name="include_stop_str_in_output",
        kind="boolean",
        meaning="Keep the stop string in the text.",
        origin="vLLM",
        default=False,
    ),
    Parameter(
        name="ignore_eos",
        kind="boolean",
        meaning="Go on past the model's own end tokens.",
        origin="vLLM",
        default=False,
    ),
    Parameter(
        name="skip_special_tokens",
        kind="boolean",
        meaning="Leave special tokens out of the text.",
        origin="vLLM",
        default=True,
    ),
)

_SAMPLING = (
    Parameter(
        name="temperature",
        kind="number",
        meaning="Divides the logits: lower is surer. 0 always takes the most likely token.",
        default=1,
        limits=RANGES["temperature"],
    ),
    Parameter(
        name="top_p",
        kind="number",
        meaning="Keep the smallest set of most likely tokens whose probabilities reach this sum.",
        default=1,
        limits=RANGES["top_p"],
    ),
    Parameter(
        name="top_k",
        kind="integer",
        meaning="Keep the k most likely tokens. 0 or -1: all.",
        origin="vLLM",
        default=0,
        limits=RANGES["top_k"],
    ),
    Parameter(
        name="min_p",
        kind="number",
        meaning="Keep tokens at least this times as likely as the most likely one.",
        origin="vLLM",
        default=0,
        limits=RANGES["min_p"],
    ),
    Parameter(
        name="presence_penalty",
        kind="number",
        meaning="Subtracted once from the logits of tokens that the output holds. The prompt does "
        "not count.",
        default=0,
        limits=RANGES["presence_penalty"],
    ),
    Parameter(
        name="frequency_penalty",
        kind="number",
        meaning="Subtracted for each time that the output holds the token.",
        default=0,
        limits=RANGES["frequency_penalty"],
    ),
    Parameter(
        name="repetition_penalty",
        kind="number",
        meaning="Divides the logits of tokens in prompt or output (multiplies those below 0).",
        origin="vLLM",
        default=1,
        limits=RANGES["repetition_penalty"],
    ),
    Parameter(
        name="logit_bias",
        kind="object of numbers",
        meaning="Token id to a number from -100 to 100, added to its logit.",
        max_length=MAX_BIASES,
        shape=BIASES,
    ),
    Parameter(
        name="seed",
        kind="integer",
        meaning="Same seed, same text, whatever else runs. Absent: drawn.",
        limits=RANGES["seed"],
    ),
)

_SCHEDULING = (
    Parameter(
        name="priority",
        kind="integer",
        meaning="Lower runs first.",
        origin="vLLM",
        default=0,
        limits=Range(-(2**31), 2**31 - 1, whole=True),
    ),
    Parameter(
        name="cache_salt",
        kind="string",
        meaning="Cached KV is shared only with requests of the same key that have the same salt.",
        origin="vLLM",
        min_length=1,
        max_length=MAX_SALT_LENGTH,
    ),
    Parameter(
        name="prompt_cache_key",
        kind="string",
        meaning="Names the session, unless the header `X-Session-ID` does: `docs/sessions.md`. "
        "Printable characters.",
        min_length=1,
        max_length=MAX_SESSION_LENGTH,
    ),
    Parameter(
        name="prompt_cache_options",
        kind="object",
        meaning="How long to keep the prompt's KV: `docs/sessions.md`.",
    ),
    Parameter(
        name="prompt_cache_retention",
        kind="string",
        meaning="The older form of the same; `in-memory` is what older clients say.",
        choices=("in_memory", "in-memory", "24h"),
    ),
    Parameter(
        name="cache_control",
        kind="object",
        meaning="A mark at the end of the whole prompt; messages, parts and tools may have their "
        "own: `docs/sessions.md`.",
        origin="Anthropic",
    ),
)

_IDS = (
    Parameter(
        name="return_token_ids",
        kind="boolean",
        meaning="Put `prompt_token_ids` and each choice's `token_ids` into the answer; in a stream "
        "those of the prompt into the first event of each choice.",
        origin="vLLM",
        default=False,
    ),
)

_CHAT = (
    Parameter(
        name="messages",
        kind="array of objects",
        meaning="The conversation. Roles: `system`, `developer`, `user`, `assistant`, `tool`; "
        "content is a text or a list of text parts.",
        apis=Api.CHAT,
        default=REQUIRED,
        min_length=1,
    ),
    Parameter(
        name="tools",
        kind="array of objects",
        meaning="Functions that the model may ask for; they go to the chat template.",
        apis=Api.CHAT,
        max_length=MAX_TOOLS,
    ),
    Parameter(
        name="tool_choice",
        kind="string or object",
        meaning="`auto`, `none`, `required`, a function by its name, or some of the tools "
        "(`allowed_tools`): `docs/tools.md`.",
        apis=Api.CHAT,
    ),
    Parameter(
        name="parallel_tool_calls",
        kind="boolean",
        meaning="Whether one answer may hold several calls.",
        apis=Api.CHAT,
        default=True,
    ),
    Parameter(
        name="logprobs",
        kind="boolean",
        meaning="Report the logprob of every token: the model's own, before penalties and "
        "temperature.",
        apis=Api.CHAT,
        default=False,
    ),
    Parameter(
        name="top_logprobs",
        kind="integer",
        meaning="Report so many most likely tokens beside each. Needs `logprobs`.",
        apis=Api.CHAT,
        default=0,
        limits=Range(0, MAX_LOGPROBS, whole=True),
    ),
    Parameter(
        name="modalities",
        kind="array of strings",
        meaning='Only `["text"]`.',
        apis=Api.CHAT,
        shape={"minItems": 1, "maxItems": 1},
    ),
    Parameter(
        name="reasoning_effort",
        kind="string",
        meaning="Goes to the chat template as `reasoning_effort`; `none` also sets "
        "`enable_thinking` to false. Templates that know neither take no notice.",
        apis=Api.CHAT,
        choices=("none", "minimal", "low", "medium", "high", "xhigh", "max"),
    ),
    Parameter(
        name="add_generation_prompt",
        kind="boolean",
        meaning="Whether the template begins the assistant's turn. Absent: unless a message is "
        "continued.",
        apis=Api.CHAT,
        origin="vLLM",
    ),
    Parameter(
        name="continue_final_message",
        kind="boolean",
        meaning="Go on with the last message instead of answering it.",
        apis=Api.CHAT,
        origin="vLLM",
        default=False,
    ),
    Parameter(
        name="chat_template_kwargs",
        kind="object",
        meaning="Further variables for the template, such as `enable_thinking`.",
        shape=VARIABLES,
        apis=Api.CHAT,
        origin="vLLM",
    ),
    Parameter(
        name="include_reasoning",
        kind="boolean",
        meaning="Whether the answer shows thoughts as `reasoning_content`. Hidden ones are made, "
        "counted and paid for all the same.",
        apis=Api.CHAT,
        origin="vLLM",
        default=True,
    ),
)

_COMPLETIONS = (
    Parameter(
        name="prompt",
        kind="string or array",
        meaning="A text, a list of texts, token ids or a list of them. Special tokens written in a "
        "text count.",
        apis=Api.COMPLETIONS,
        default=REQUIRED,
        shape={"minItems": 1},
    ),
    Parameter(
        name="suffix",
        kind="string",
        meaning="The text behind the gap that is to be filled. Only models with tokens for it "
        "(Qwen2.5-Coder, StarCoder and others); not with `echo`.",
        apis=Api.COMPLETIONS,
    ),
    Parameter(
        name="echo",
        kind="boolean",
        meaning="The prompt comes first; with `logprobs` it is scored too.",
        apis=Api.COMPLETIONS,
        default=False,
    ),
    Parameter(
        name="logprobs",
        kind="integer",
        meaning="Report the logprob of every token and so many most likely ones beside it.",
        apis=Api.COMPLETIONS,
        limits=RANGES["logprobs"],
    ),
    Parameter(
        name="best_of",
        kind="integer",
        meaning="Choices to be generated; the `n` with the highest mean logprob of their tokens "
        "are returned. Not below `n`, and not with `stream`.",
        apis=Api.COMPLETIONS,
        limits=Range(1, MAX_BEST_OF, whole=True),
    ),
    Parameter(
        name="add_special_tokens",
        kind="boolean",
        meaning="Whether a text begins with BOS. Absent: what the model's files say.",
        apis=Api.COMPLETIONS,
        origin="vLLM",
    ),
)

SERVED = (
    *_ANSWER, *_LENGTH, *_SAMPLING, *_SCHEDULING, *_IDS, *FORM, *_CHAT, *_COMPLETIONS,
)  # fmt: skip
