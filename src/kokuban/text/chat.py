"""Turns messages into the prompt of a chat model: its template, then its tokens.

What a client sends is checked and put into one form (`messages`), masked so that it cannot write
special tokens (`masking`), rendered by the model's template in a sandbox, and encoded with the
template's own special tokens. What the template or the client did wrong is a `TemplateError` or a
`RequestError` (400), never a fault of the server.

Templates that walk through content parts and ignore plain text (some models that also see
images) are found by trying, once, and given parts.
"""

import copy
import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from kokuban.core.errors import ModelError, RequestError, TemplateError
from kokuban.text.answer_parser import AnswerStyle, style_of_template
from kokuban.text.masking import SpecialMask
from kokuban.text.messages import Message, normalise
from kokuban.text.tokenizer import Tokenizer
from kokuban.text.tool_prompt import PROBE, filled, written_out
from kokuban.text.validate import check_json

if TYPE_CHECKING:
    from kokuban.text.compiled import CompiledTemplate
    from kokuban.text.sandbox import Clock

_LOG = logging.getLogger(__name__)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Used for models that have no template of their own."""

RESERVED = frozenset(
    {
        "messages", "tools", "documents", "add_generation_prompt", "continue_final_message",
        "chat_template", "tokenize", "bos_token", "eos_token", "raise_exception", "strftime_now",
        "range", "namespace", "tojson", "return_dict", "padding", "truncation", "max_length",
    }
)  # fmt: skip
"""Names that `chat_template_kwargs` must not set."""

# Letters of Linear A, as the masks, from another part of the block.
_END_MARKS = tuple(chr(code) for code in range(0x10700, 0x10737))


class ChatTemplate:
    """The chat template of one model. Immutable; safe in several threads.

    Args:
        source: the model's template. None: ChatML, with a warning.
        tokenizer: the model's.
        named: other templates by name; "tool_use" is taken when there are tools.
        now: the clock of `strftime_now`.

    A template that cannot be parsed is told by `load`, and by every chat that needs it.
    """

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        *,
        named: Mapping[str, str] | None = None,
        now: "Clock" = dt.datetime.now,
    ) -> None:
        if source is None:
            _LOG.warning("the model has no chat template; ChatML is used, which it may not know")
        self.is_default = source is None
        self.source = CHATML if source is None else source
        self._tokenizer = tokenizer
        self._mask = SpecialMask(tokenizer.special_texts)
        self._tool_source = (named or {}).get("tool_use", self.source)
        self._now = now
        self.style = style_of_template(self._tool_source)
        """How answers to its prompts are written."""

    def load(self) -> None:
        """Compile the template, unless that was done; else the first chat does it.

        Raises:
            ModelError: it cannot be parsed.
        """
        _ = self._compiled

    @cached_property
    def _compiled(self) -> "tuple[CompiledTemplate, CompiledTemplate]":
        """The template without tools, and with them."""
        # Jinja is a twentieth of what a start imports, and no start needs it.
        from kokuban.text.compiled import CompiledTemplate
        from kokuban.text.sandbox import Sandbox

        sandbox = Sandbox(self._now)
        plain = CompiledTemplate(sandbox, self.source)
        if self._tool_source == self.source:
            return plain, plain
        return plain, CompiledTemplate(sandbox, self._tool_source)

    def with_style(self, style: AnswerStyle) -> Self:
        """The same template, for a model that writes in another way than is guessed."""
        other = copy.copy(self)
        other.style = style
        return other

    @cached_property
    def takes_late_system(self) -> bool:
        """Whether a system message may stand behind other turns. Found by trying, once."""
        roles = ("user", "assistant", "user", "system", "assistant", "user")
        messages = [
            {"role": role, "content": f"{PROBE}-{index}"} for index, role in enumerate(roles)
        ]
        try:
            text = self.render_chat(messages)
        except RequestError:
            return False
        places = [text.find(message["content"]) for message in messages]
        return -1 not in places and places == sorted(places)

    def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """The prompt's ids. BOS stands once in front if the model expects it.

        Args:
            messages, tools, documents: as in the request: JSON values.
            add_generation_prompt: end with the header of the answer.
            continue_final_message: end inside the last message, which must be the assistant's.
            kwargs: further variables for the template, such as `enable_thinking`.

        Raises:
            RequestError: the messages are malformed; names the field.
            TemplateError: the template refused them, or failed on them.
        """
        text, character = self._rendered(
            messages, tools, documents, add_generation_prompt, continue_final_message, kwargs
        )
        add_bos = self._tokenizer.add_bos
        if character is None:
            return self._tokenizer.encode(text, add_bos=add_bos, parse_special=True)
        return self._tokenizer.encode_masked(
            text, lambda part: self._mask.unmask(part, character), add_bos=add_bos
        )

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt as text, for people to read. Do not encode it: what a user wrote and what
        the template wrote can no longer be told apart. See `encode_chat`."""
        text, character = self._rendered(
            messages, tools, documents, add_generation_prompt, continue_final_message, kwargs
        )
        return text if character is None else self._mask.unmask(text, character)

    def _for(self, tools: object) -> "CompiledTemplate":
        try:
            return self._compiled[bool(tools)]
        except ModelError as error:
            raise TemplateError(f"{error}; send a prompt without it", param="messages") from error

    def _rendered(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        documents: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        continue_final_message: bool,
        kwargs: Mapping[str, Any] | None,
    ) -> tuple[str, str | None]:
        """The masked prompt and the mask, None where nothing had to be masked."""
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message and add_generation_prompt exclude each other; set "
                "add_generation_prompt to false",
                param="continue_final_message",
            )
        template = self._for(tools)
        checked = normalise(messages, keep_developer=template.knows_developer)
        tools = check_json(tools, "tools") or None
        variables: dict[str, Any] = {
            **_checked_kwargs(kwargs),
            "messages": written_out(checked, tools, template.find_abilities, self.style.calls),
            "tools": filled(tools, template.find_abilities),
            "documents": check_json(documents, "documents") or None,
            "add_generation_prompt": add_generation_prompt,
        }
        character = self._mask.character_for(variables, template.source)
        if character is not None:
            variables = self._mask.mask(variables, character)
        tokenizer = self._tokenizer
        variables["bos_token"] = _piece(tokenizer, tokenizer.bos_id)
        variables["eos_token"] = _piece(tokenizer, tokenizer.eos_id)
        if continue_final_message:
            return _render_open(template, variables), character
        return template.render(variables), character


def _render_open(template: "CompiledTemplate", variables: dict[str, Any]) -> str:
    """The prompt up to the end of the last message.

    The place is found by rendering a second time with a mark behind the message: what follows the
    mark is what must be cut. The message itself is not searched for, so that a template may trim
    it.
    """
    messages: list[Message] = variables["messages"]
    last = messages[-1]
    if last["role"] != "assistant":
        raise RequestError(
            f"continue_final_message needs an assistant message at the end, not {last['role']!r}",
            param="continue_final_message",
        )
    whole = template.render(variables)
    mark = next(mark for mark in _END_MARKS if mark not in whole and mark not in template.source)
    marked_last = {**last, "content": last["content"] + mark}
    marked = template.render({**variables, "messages": [*messages[:-1], marked_last]})
    _, found, rest = marked.partition(mark)
    if not found or mark in rest or not whole.endswith(rest):
        raise TemplateError(
            "the chat template does not write the last message once and as it is, so it cannot "
            "be continued",
            param="continue_final_message",
        )
    return whole[: len(whole) - len(rest)]


def _checked_kwargs(kwargs: Mapping[str, Any] | None) -> dict[str, Any]:
    param = "chat_template_kwargs"
    checked: dict[str, Any] = check_json(kwargs or {}, param)
    for name in checked:
        is_plain = name.isidentifier() and name.isascii() and not name.startswith("_")
        if name in RESERVED or not is_plain:
            raise RequestError(f"{param} must not set {name!r}", param=f"{param}.{name}")
    return checked


def _piece(tokenizer: Tokenizer, token_id: int | None) -> str:
    return "" if token_id is None else tokenizer.piece_of(token_id) or ""
