"""`python -m tests.server.batch.child IN OUT`: answers a batch; prints each custom_id it wrote."""

import asyncio
import sys
from pathlib import Path

from tests.server.asgi import make_app
from tests.server.fakes import served
from tests.server.live import PIECES, SlowEngine

from kokuban.server.batch.run import Batch
from kokuban.server.batch.sink import Sink
from kokuban.server.batch.source import Source


def main() -> None:
    requests, results = map(Path, sys.argv[1:])
    model = served(pieces=PIECES, engine=SlowEngine({}))
    with Sink(results) as sink:
        batch = Batch(
            make_app(model),
            model.client.alive,
            Source(requests, 2**20),
            sink,
            concurrency=2,
            on_result=lambda result: print(result.custom_id, flush=True),
        )
        asyncio.run(batch.run())


if __name__ == "__main__":
    main()
