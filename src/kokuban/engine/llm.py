"""The offline face: prompts in, texts out, with the same engine that the server runs.

    from kokuban import LLM, SamplingParams

    llm = LLM("smollm2")
    for output in llm.generate(["The sky is", "One plus one is"], SamplingParams(max_tokens=20)):
        print(output.choices[0].text)

All prompts of a call run in one batch. The event loop that feeds the engine is a thread of the
`LLM`, so that calls work in scripts, notebooks and other people's event loops alike.
"""

import asyncio
import threading
import weakref
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self, TypeVar

from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.errors import StepFailed
from kokuban.core.pooling import PoolingParams
from kokuban.core.request import FinishReason
from kokuban.core.sampling_params import SamplingParams
from kokuban.core.step import SampledToken, Usage
from kokuban.engine.beam import Beam, beam_search
from kokuban.engine.build import build_engine
from kokuban.engine.embedding import embed, floats_of
from kokuban.engine.engine import Engine
from kokuban.engine.generation import TextDelta, generate

T = TypeVar("T")

Prompt = str | Sequence[int]


@dataclass(slots=True)
class ChoiceOutput:
    """One continuation of a prompt."""

    index: int
    text: str = ""
    tokens: list[SampledToken] = field(default_factory=list)
    prompt_logprobs: list[SampledToken] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None

    @property
    def token_ids(self) -> list[int]:
        """Ids of the generated tokens, the end token included."""
        return [token.token_id for token in self.tokens]

    def take(self, delta: TextDelta) -> None:
        """Append what came."""
        self.text += delta.text
        self.tokens += delta.tokens
        self.prompt_logprobs += delta.prompt_logprobs
        if delta.finish is FinishReason.ERROR:
            raise StepFailed(delta.error or "the engine could not finish this request")
        if delta.finish is not None:
            self.finish, self.stop_reason, self.usage = delta.finish, delta.stop_reason, delta.usage


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """All continuations of one prompt."""

    prompt_token_ids: tuple[int, ...]
    choices: tuple[ChoiceOutput, ...]


@dataclass(frozen=True, slots=True)
class BeamOutput:
    """One continuation that a beam search found."""

    text: str
    token_ids: tuple[int, ...]
    """The generated tokens, an end token included."""

    logprob: float
    """Natural logarithm of their probability together."""

    score: float
    """logprob / (number of tokens) ** length_penalty."""

    finish: FinishReason


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """The vector of one prompt."""

    prompt_token_ids: tuple[int, ...]
    data: bytes
    """The numbers, float32 in little-endian order: `numpy.frombuffer(data, "<f4")`."""

    usage: Usage

    @property
    def embedding(self) -> list[float]:
        """The same as numbers."""
        return floats_of(self.data)


class LLM:
    """A loaded model. Use it as a context manager, or call `close`.

    Args:
        model: a GGUF file, a Hugging Face style directory, a hub id or a short name.
        scheduler, runtime: see their classes.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        scheduler: SchedulerConfig | None = None,
        runtime: RuntimeConfig | None = None,
    ) -> None:
        scheduler = scheduler or SchedulerConfig()
        self.engine: Engine = build_engine(
            model, scheduler=scheduler, runtime=runtime or RuntimeConfig()
        )
        self._max_waiting = scheduler.max_waiting_requests
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=self._loop.run_forever, name="kokuban-llm", daemon=True)
        thread.start()
        # Also at the end of the program, for those who never close.
        self._shut_down = weakref.finalize(self, _shut_down, self.engine, self._loop, thread)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[RequestOutput]:
        """Continue each prompt, a text or its token ids.

        Args:
            params: one for all prompts, or one for each.

        Raises:
            RequestError: a prompt can never run.
            StepFailed: the engine could not finish a request.
        """
        encoded = [self._encode(prompt) for prompt in _as_list(prompts)]
        each = _for_each(params, len(encoded))
        return self._wait(self._run_all(encoded, each, continues=True))

    def embed(
        self, prompts: Prompt | Sequence[Prompt], params: PoolingParams | None = None
    ) -> list[EmbeddingOutput]:
        """The vector of each prompt, a text or its token ids.

        Args:
            params: the last token's hidden state, scaled to length 1, by default.

        Raises:
            RequestError: a prompt can never run.
            StepFailed: the engine could not finish a request.
        """
        encoded = [self._encode(prompt) for prompt in _as_list(prompts)]
        return self._wait(self._embed_all(encoded, params or PoolingParams()))

    def beam_search(
        self,
        prompt: Prompt,
        beam_width: int,
        max_tokens: int,
        length_penalty: float = 1.0,
        *,
        ignore_eos: bool = False,
    ) -> list[BeamOutput]:
        """The `beam_width` continuations whose tokens are most likely together, best first.

        The score is the sum of the tokens' logprobs, an end token included, divided by
        (number of tokens) ** length_penalty. `engine.beam` says how the search goes.

        Args:
            beam_width: 1 to 10 sequences that are followed at the same time.
            ignore_eos: go on past the model's end-of-text tokens.

        Raises:
            RequestError: a number out of range, or a prompt that can never run.
            StepFailed: the engine could not finish a request.
        """
        ends = () if ignore_eos else self.engine.end_token_ids
        beams = self._wait(
            beam_search(
                self.engine.client,
                self._encode(prompt),
                beam_width=beam_width,
                max_tokens=max_tokens,
                length_penalty=length_penalty,
                end_token_ids=ends,
            )
        )
        return [self._beam_output(beam, length_penalty) for beam in beams]

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **template: Any,
    ) -> RequestOutput:
        """Answer one conversation. `template` goes to `ChatTemplate.encode_chat`."""
        ids = self.engine.encode_chat(messages, **template)
        [output] = self._wait(self._run_all([ids], [params or SamplingParams()], continues=False))
        return output

    def stream_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams | None = None,
        **template: Any,
    ) -> Iterator[TextDelta]:
        """Answer one conversation piece by piece. Leaving the iterator early cancels the rest."""
        ids = self.engine.encode_chat(messages, **template)
        return self._stream(ids, params or SamplingParams(), continues=False)

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[TextDelta]:
        """Continue one prompt piece by piece. Leaving the iterator early cancels the rest."""
        return self._stream(self._encode(prompt), params or SamplingParams(), continues=True)

    def close(self) -> None:
        """Stop the engine and give its memory back. A second call does nothing."""
        self._shut_down()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _encode(self, prompt: Prompt) -> list[int]:
        if not isinstance(prompt, str):
            return list(prompt)
        tokenizer = self.engine.tokenizer
        return tokenizer.encode(prompt, add_bos=tokenizer.add_bos, parse_special=True)

    def _beam_output(self, beam: Beam, length_penalty: float) -> BeamOutput:
        assert beam.finish is not None, "a beam that goes on"
        has_end = beam.finish is FinishReason.STOP
        shown = beam.token_ids[:-1] if has_end else beam.token_ids
        text = self.engine.tokenizer.decode(shown, skip_special=True, continues=True)
        score = beam.score(length_penalty)
        return BeamOutput(text, beam.token_ids, beam.logprob, score, beam.finish)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop.is_closed():
            work.close()
            raise StepFailed("this LLM is closed; make a new one")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C too: what nobody waits for must not go on
            future.cancel()
            raise

    async def _run_all(
        self, prompts: Sequence[list[int]], params: Sequence[SamplingParams], *, continues: bool
    ) -> list[RequestOutput]:
        # The queue refuses what is beyond its length: hand over no more than it takes.
        most = max((each.n for each in params), default=1)
        seats = asyncio.Semaphore(max(1, self._max_waiting // most))

        async def run(ids: list[int], each: SamplingParams) -> RequestOutput:
            async with seats:
                return await self._run(ids, each, continues=continues)

        tasks = [
            asyncio.create_task(run(ids, each)) for ids, each in zip(prompts, params, strict=True)
        ]
        try:
            return list(await asyncio.gather(*tasks))
        finally:  # after an error: cancel what still runs, and wait until it has let go
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _embed_all(
        self, prompts: Sequence[list[int]], params: PoolingParams
    ) -> list[EmbeddingOutput]:
        outputs: list[EmbeddingOutput] = []
        for begin in range(0, len(prompts), self._max_waiting):  # no more than the queue takes
            part = prompts[begin : begin + self._max_waiting]
            found: dict[int, EmbeddingOutput] = {}
            async with aclosing(embed(self.engine.client, part, params)) as deltas:
                async for delta in deltas:
                    if delta.embedding is None or delta.usage is None:
                        raise StepFailed(delta.error or "the engine could not finish this request")
                    ids = tuple(part[delta.choice])
                    found[delta.choice] = EmbeddingOutput(ids, delta.embedding, delta.usage)
            outputs += [found[index] for index in range(len(part))]
        return outputs

    async def _run(
        self, ids: list[int], params: SamplingParams, *, continues: bool
    ) -> RequestOutput:
        choices = tuple(ChoiceOutput(index) for index in range(params.n))
        async with aclosing(self._deltas(ids, params, continues=continues)) as deltas:
            async for delta in deltas:
                choices[delta.choice].take(delta)
        return RequestOutput(tuple(ids), choices)

    def _deltas(self, ids: list[int], params: SamplingParams, *, continues: bool) -> Any:
        return generate(
            self.engine.client,
            self.engine.tokenizer,
            ids,
            params,
            end_token_ids=self.engine.end_token_ids,
            continues=continues,
        )

    def _stream(
        self, ids: list[int], params: SamplingParams, *, continues: bool
    ) -> Iterator[TextDelta]:
        came: SimpleQueue[TextDelta | BaseException | None] = SimpleQueue()

        async def pump() -> None:
            try:
                async with aclosing(self._deltas(ids, params, continues=continues)) as deltas:
                    async for delta in deltas:
                        came.put(delta)
                came.put(None)
            except BaseException as error:
                came.put(error)
                raise

        if self._loop.is_closed():
            raise StepFailed("this LLM is closed; make a new one")
        task = asyncio.run_coroutine_threadsafe(pump(), self._loop)
        try:
            while (news := came.get()) is not None:
                if isinstance(news, BaseException):
                    raise news
                yield news
        finally:
            task.cancel()


def _shut_down(engine: Engine, loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Stop the engine, let what waits for it see its end, then stop the loop."""
    engine.close()
    asyncio.run_coroutine_threadsafe(_end_tasks(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """One prompt (a text, or ids) becomes a list of one."""
    if isinstance(prompts, str):
        return [prompts]
    if prompts and isinstance(prompts[0], int):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]


def _for_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if len(params) != count:
        raise ValueError(f"{len(params)} SamplingParams were given for {count} prompts")
    return list(params)
