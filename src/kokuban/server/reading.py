"""Says what the answers of a turn must match, and reads them: each choice's text becomes parts."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from kokuban.core.errors import RequestError
from kokuban.core.sampling_params import SamplingParams
from kokuban.engine.generation import TextDelta
from kokuban.server.serving import Serving
from kokuban.server.tool_choice import ToolPlan
from kokuban.text.answer_grammar import AnswerGrammar, OfferedTool, blamed
from kokuban.text.answer_parser import AnswerParser
from kokuban.text.reasoning import Thoughts, thoughts_after

TOOLS_PARAM = "tools"
"""The field that is at fault where a grammar of calls cannot be compiled."""

_NUM_TAIL_TOKENS = 16
"""More than the mark that opens a block of thoughts has, with white space after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """What is asked of the answers to one prompt, and how they are read."""

    serving: Serving
    plan: ToolPlan
    thoughts: Thoughts
    """What the end of the prompt leaves to think."""

    def parser(self) -> AnswerParser:
        """A parser for one choice."""
        style = self.serving.chat_template.style
        is_bound = self.plan.is_bound and not self.plan.is_forced
        return AnswerParser(
            style.calls.only_marked() if is_bound else style.calls,
            tools=self.plan.parameter_names if self._reads_calls else {},
            max_calls=self.plan.max_calls,
            reasons=style.reasons,
            is_thinking=self.thoughts is Thoughts.GO_ON,
        )

    def bound(self, params: SamplingParams) -> SamplingParams:
        """The parameters with the grammar of calls, and room for thoughts before any grammar.

        Raises:
            RequestError: a tool's parameters cannot be followed; names the tool.
        """
        grammar = self._grammar(params.grammar)
        return params if grammar == params.grammar else replace(params, grammar=grammar)

    def _grammar(self, form: str | None) -> str | None:
        plan = self.plan
        write = AnswerGrammar(
            style=self.serving.chat_template.style,
            specials=self.serving.special_marks,
            thoughts=self.thoughts,
        )
        if plan.is_forced and not self._reads_calls:
            raise RequestError(
                "a call cannot be forced: this server was started with --tool-parser none",
                param="tool_choice",
            )
        if plan.is_forced:
            return write.forced(plan.tools, plan.max_calls)
        tools = plan.tools if self._reads_calls else ()
        if form is not None:
            has_more = tools or self.thoughts is not Thoughts.NONE
            return write.formed(form, tools, plan.max_calls) if has_more else form
        return write.free(tools, plan.max_calls) if tools and plan.is_bound else None

    @property
    def _reads_calls(self) -> bool:
        return self.serving.settings.tool_parser != "none"


def reader_of(serving: Serving, prompt: Sequence[int], plan: ToolPlan) -> Reader:
    """What is to be looked for after this prompt."""
    thoughts = Thoughts.NONE
    if serving.chat_template.style.reasons:
        tail = prompt[-_NUM_TAIL_TOKENS:]
        thoughts = thoughts_after(serving.model.tokenizer.decode(tail, skip_special=False))
    return Reader(serving=serving, plan=plan, thoughts=thoughts)


async def blaming(
    deltas: AsyncGenerator[TextDelta], tools: Sequence[OfferedTool], param: str
) -> AsyncGenerator[TextDelta]:
    """The same deltas; where the parameters of a tool are at fault for an error, it names the tool.

    Args:
        param: the field that errors about the grammar name.

    Raises:
        RequestError: see above.
    """
    async with aclosing(deltas):
        try:
            async for delta in deltas:
                yield delta
        except RequestError as error:
            if error.param != param:
                raise
            raise await asyncio.to_thread(blamed, error, tools) from None


async def parted(
    deltas: AsyncGenerator[TextDelta], parser: Callable[[], AnswerParser]
) -> AsyncGenerator[TextDelta]:
    """The same deltas with their parts.

    Args:
        parser: makes one for each choice.
    """
    parsers: dict[int, AnswerParser] = {}
    async with aclosing(deltas):
        async for delta in deltas:
            choice = parsers.get(delta.choice)
            if choice is None:
                choice = parsers[delta.choice] = parser()
            parts = choice.feed(delta.text)
            if delta.finish is not None:
                parts += choice.finish()
            yield replace(delta, parts=parts) if parts else delta
