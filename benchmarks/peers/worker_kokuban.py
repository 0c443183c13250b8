"""Kokuban as a worker of the peer benchmarks: MODEL THREADS KV_DTYPE."""

import asyncio
import itertools
import sys

from worker import Case, Record, Times, work

from kokuban import SamplingParams, __version__
from kokuban.core.config import RuntimeConfig, SchedulerConfig
from kokuban.core.request import Request, RequestId
from kokuban.engine.build import build_engine
from kokuban.engine.engine import Engine


class Runner:
    """Hands all sequences to the engine at once; it schedules them as it would a server's."""

    def __init__(self, engine: Engine) -> None:
        self._client = engine.client
        self._ids = itertools.count()

    def run(self, case: Case) -> Times:
        return asyncio.run(self._all(case))

    async def _all(self, case: Case) -> Times:
        params = SamplingParams(temperature=0, max_tokens=case.new, ignore_eos=True)
        requests = [
            Request(
                id=RequestId(f"peer-{next(self._ids)}"),
                prompt_token_ids=tuple(prompt),
                params=params,
            )
            for prompt in case.prompts()
        ]
        record = Record(case.batch)
        await asyncio.gather(
            *(self._one(index, request, record) for index, request in enumerate(requests))
        )
        return record.times()

    async def _one(self, index: int, request: Request, record: Record) -> None:
        async for event in self._client.submit([request]):
            if event.error is not None:
                sys.exit(f"a request failed: {event.error}")
            if event.tokens:
                record.take(index, len(event.tokens))


def main() -> None:
    model, threads, kv_dtype = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    runtime = RuntimeConfig(threads=threads, kv_dtype=kv_dtype)  # type: ignore[arg-type]
    engine = build_engine(model, scheduler=SchedulerConfig(), runtime=runtime)
    try:
        facts = {
            "version": __version__,
            "threads": engine.client.info.threads,
            "isa": engine.client.info.isa,
            "kv": kv_dtype,
        }
        work(facts, Runner(engine).run)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
