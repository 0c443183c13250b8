"""`kokuban run` and `kokuban chat`: the model in the terminal, without a server."""

import asyncio
import sys
from collections.abc import Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

import click

from kokuban.cli import options
from kokuban.cli.commands import Option
from kokuban.cli.options import DEFAULTS, EngineOptions, open_engine
from kokuban.core.errors import RequestError, StepFailed
from kokuban.core.request import FinishReason
from kokuban.core.sampling_params import SamplingParams

if TYPE_CHECKING:
    from kokuban.engine.engine import Engine

GREETING = "Write a message. /clear begins anew, /exit ends."


def run(
    model: options.Model,
    prompt: Annotated[
        str | None, Option("-p", "--prompt", help="The message. Default: standard input.")
    ] = None,
    raw: Annotated[
        bool, Option("--raw", help="Continue the text itself, without the chat template.")
    ] = False,
    max_tokens: options.MaxTokens = 512,
    temperature: options.Temperature = 0.0,
    seed: options.Seed = None,
    max_context_tokens: options.MaxContextTokens = 0,
    kv_dtype: options.KvDtypeName = "bf16",
    kv_memory: options.KvMemory = None,
    threads: options.Threads = 0,
    quantize: options.Quantize = "none",
    speculate: options.Speculate = "",
) -> None:
    """Answer one message and end."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    text = prompt if prompt is not None else sys.stdin.read()
    engine_options = EngineOptions(
        model=model,
        max_context_tokens=max_context_tokens,
        block_size=DEFAULTS.block_size,
        kv_dtype=kv_dtype,
        kv_memory=kv_memory,
        threads=threads,
        quantize=quantize,
        speculate=speculate,
    )
    with open_engine(engine_options) as engine:
        if raw:
            tokenizer = engine.tokenizer
            ids = tokenizer.encode(text, add_bos=tokenizer.add_bos, parse_special=True)
        else:
            ids = _chat_ids(engine, [{"role": "user", "content": text}])
        asyncio.run(_answer(engine, ids, params, continues=raw))


def chat(
    model: options.Model = options.DEFAULT_MODEL,
    system: Annotated[str | None, Option(help="What the model is told first.")] = None,
    max_tokens: options.MaxTokens = 1024,
    temperature: options.Temperature = 0.7,
    seed: options.Seed = None,
    max_context_tokens: options.MaxContextTokens = 0,
    kv_dtype: options.KvDtypeName = "bf16",
    kv_memory: options.KvMemory = None,
    threads: options.Threads = 0,
    quantize: options.Quantize = "none",
    speculate: options.Speculate = "",
) -> None:
    """Talk with a model. Ctrl-C ends an answer, Ctrl-D or /exit the conversation."""
    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    engine_options = EngineOptions(
        model=model,
        max_context_tokens=max_context_tokens,
        kv_dtype=kv_dtype,
        kv_memory=kv_memory,
        threads=threads,
        quantize=quantize,
        speculate=speculate,
    )
    first = [{"role": "system", "content": system}] if system else []
    with open_engine(engine_options) as engine:
        click.echo(GREETING)
        _converse(engine, first, params)


def _converse(engine: "Engine", first: list[dict[str, Any]], params: SamplingParams) -> None:
    """Read and answer until the end of the input."""
    messages = list(first)
    while (text := _read()) is not None:
        if text == "/clear":
            messages = list(first)
            continue
        messages.append({"role": "user", "content": text})
        said: list[str] = []
        try:
            ids = _chat_ids(engine, messages)
            asyncio.run(_answer(engine, ids, params, said=said))
        except KeyboardInterrupt:
            click.echo(" …")
        except RequestError as error:
            click.echo(f"kokuban: {error}", err=True)
            messages.pop()
            continue
        messages.append({"role": "assistant", "content": "".join(said)})


def _read() -> str | None:
    """The next line that is not empty; None at the end."""
    while True:
        try:
            line = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            click.echo()
            return None
        if line == "/exit":
            return None
        if line:
            return line


def _chat_ids(engine: "Engine", messages: list[dict[str, Any]]) -> list[int]:
    return engine.encode_chat(messages)


async def _answer(
    engine: "Engine",
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    *,
    continues: bool = False,
    said: list[str] | None = None,
) -> None:
    """Write an answer to standard output as it comes.

    Args:
        said: gets the pieces, also those of an answer that is interrupted.
    """
    from kokuban.engine.generation import generate

    deltas = generate(
        engine.client,
        engine.tokenizer,
        prompt_token_ids,
        params,
        end_token_ids=engine.end_token_ids,
        continues=continues,
    )
    async with aclosing(deltas):
        async for delta in deltas:
            click.echo(delta.text, nl=False)
            sys.stdout.flush()
            if said is not None:
                said.append(delta.text)
            if delta.finish is FinishReason.ERROR:
                raise StepFailed(delta.error or "the engine could not finish the answer")
    click.echo()
