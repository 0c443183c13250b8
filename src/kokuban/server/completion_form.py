"""The shape of a completion's answer, whole and streamed, with echo and the four logprob lists."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET
from msgspec.structs import replace

from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import SampledToken
from kokuban.engine.generation import TextDelta
from kokuban.server.form import LOWEST_LOGPROB, FormBase, finish_word
from kokuban.server.openai_models import CompletionRequest
from kokuban.server.openai_responses import (
    DONE,
    Completion,
    CompletionChoice,
    CompletionLogprobs,
    encode,
    event,
)
from kokuban.server.record import Record
from kokuban.server.serving import Serving
from kokuban.text.detokenizer import Detokenizer
from kokuban.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt, as it was sent and as the model reads it."""

    text: str | None
    """None when it was sent as token ids."""

    token_ids: Sequence[int]


@dataclass(slots=True)
class _Choice:
    """What is known of one choice so far."""

    offsets: Detokenizer
    offset: int = 0
    """Characters before the next token."""

    opened: bool = False
    """Whether the echoed prompt has been written."""

    began: bool = False
    """Whether something of it has been sent."""

    prompt_logprobs: list[SampledToken] = field(default_factory=list)
    deltas: list[TextDelta] = field(default_factory=list)


class CompletionForm(FormBase):
    """The completion's shape of an answer; see `answer.Form`.

    Choices are numbered prompt by prompt: choice c of prompt p has the index p * n + c. With
    `best_of` above n they are so before they are ranked, and again afterwards.
    """

    def __init__(
        self,
        serving: Serving,
        body: CompletionRequest,
        record: Record,
        prompts: Sequence[Prompt],
        params: SamplingParams,
    ) -> None:
        super().__init__(serving, body.stream_options, record, f"cmpl-{record.request_id}")
        self._echo = bool(body.echo)
        self._num_top = body.logprobs
        self._shows_ids = bool(body.return_token_ids)
        self._num_choices = params.n
        self._num_best = None if body.num_ranked is None else body.n or 1
        self._prompts = [prompt for prompt in prompts for _ in range(params.n)]
        skip = params.skip_special_tokens
        self._skip_special = skip
        self._choices = [
            _Choice(Detokenizer(self.tokenizer, skip_special=skip, continues=not self._echo))
            for _ in self._prompts
        ]

    def add(self, delta: TextDelta) -> None:
        self._choices[delta.choice].deltas.append(delta)

    def body(self) -> bytes:
        choices = []
        for index, choice in enumerate(self._choices):
            for delta in choice.deltas:
                choice.prompt_logprobs += delta.prompt_logprobs
            text = "".join(delta.text for delta in choice.deltas)
            tokens = [token for delta in choice.deltas for token in delta.tokens]
            choices.append(self._piece(index, text, tokens, choice.deltas[-1]))
        if self._num_best is not None:
            choices = self._best(choices, self._num_best)
        return encode(self._completion(choices, is_last=True))

    def _best(self, choices: Sequence[CompletionChoice], n: int) -> list[CompletionChoice]:
        """Of each prompt's choices the n best, best first, numbered anew."""
        best = []
        for first in range(0, len(choices), self._num_choices):
            group = range(first, first + self._num_choices)
            ranked = sorted(group, key=lambda index: -self._mean_logprob(index))
            best += [choices[index] for index in ranked[:n]]
        return [replace(choice, index=index) for index, choice in enumerate(best)]

    def _mean_logprob(self, index: int) -> float:
        """Of the generated tokens, an end token included."""
        tokens = [token for delta in self._choices[index].deltas for token in delta.tokens]
        return sum(token.logprob for token in tokens) / max(1, len(tokens))

    def opening(self) -> bytes:
        return b""

    def events(self, delta: TextDelta) -> bytes:
        choice = self._choices[delta.choice]
        choice.prompt_logprobs += delta.prompt_logprobs
        is_silent = not (delta.text or delta.finish)
        tells = self._num_top is not None or self.usage_always or self._shows_ids
        if is_silent and not (delta.tokens and tells):
            return b""
        piece = self._piece(delta.choice, delta.text, delta.tokens, delta)
        return event(self._completion([piece], is_last=False))

    def closing(self) -> bytes:
        return (event(self._completion([], is_last=True)) if self.usage_at_end else b"") + DONE

    def _completion(self, choices: list[CompletionChoice], *, is_last: bool) -> Completion:
        return Completion(
            id=self.id,
            created=self.created,
            model=self.model,
            system_fingerprint=self.fingerprint,
            choices=choices,
            usage=self.usage_field(is_last=is_last),
        )

    def _piece(
        self, index: int, text: str, tokens: Sequence[SampledToken], last: TextDelta
    ) -> CompletionChoice:
        """A choice's new text; the first piece of it begins with the prompt if that is echoed."""
        choice = self._choices[index]
        lists = CompletionLogprobs([], [], [], [])
        if self._echo and not choice.opened:
            choice.opened = True
            text = self._prompt_text(self._prompts[index]) + text
            if self._num_top is not None:
                self._list_prompt(index, lists)
        if self._num_top is not None:
            for token in tokens:
                self._list(choice, lists, token.token_id, token)
        is_first, choice.began = not choice.began, True
        return CompletionChoice(
            index,
            text,
            lists if self._num_top is not None else None,
            finish_word(last.finish) if last.finish is not None else None,
            last.stop_reason,
            [token.token_id for token in tokens] if self._shows_ids else UNSET,
            list(self._prompts[index].token_ids) if self._shows_ids and is_first else UNSET,
        )

    def _prompt_text(self, prompt: Prompt) -> str:
        if prompt.text is not None:
            return prompt.text
        return self.tokenizer.decode(prompt.token_ids, skip_special=self._skip_special)

    def _list_prompt(self, index: int, lists: CompletionLogprobs) -> None:
        choice, ids = self._choices[index], self._prompts[index].token_ids
        self._list(choice, lists, ids[0], None)
        for token_id, scored in zip(ids[1:], choice.prompt_logprobs, strict=True):
            self._list(choice, lists, token_id, scored)

    def _list(
        self,
        choice: _Choice,
        lists: CompletionLogprobs,
        token_id: int,
        scored: SampledToken | None,
    ) -> None:
        lists.tokens.append(token_name(self.tokenizer, token_id))
        lists.text_offset.append(choice.offset)
        choice.offset += len(choice.offsets.feed(token_id))
        if scored is None:
            lists.token_logprobs.append(None)
            lists.top_logprobs.append(None)
            return
        logprob = max(scored.logprob, LOWEST_LOGPROB)
        lists.token_logprobs.append(logprob)
        top = {
            token_name(self.tokenizer, other.token_id): max(other.logprob, LOWEST_LOGPROB)
            for other in scored.top[: self._num_top]
        }
        top[lists.tokens[-1]] = logprob  # The chosen one is always listed.
        lists.top_logprobs.append(top)


def token_name(tokenizer: Tokenizer, token_id: int) -> str:
    r"""A token's text; `bytes:\xf0\x9f` for one that is no text on its own, as OpenAI writes it."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
