"""A short run of the fuzz driver: benchmarks/fuzz.py has the long one."""

import asyncio

from benchmarks.fuzz import engine, fuzz


def test_no_request_disturbs_the_server_or_the_streams_beside_it() -> None:
    """Keeps B12, B26, B27, B28 and B96 out: docs/bugbank.md."""
    with engine() as built:
        report = asyncio.run(fuzz(built, num_cases=400, seed=1, num_streams=4, stream_tokens=60))

    assert report.faults == []
    assert sum(report.statuses.values()) == 400
    assert report.num_streams >= 4
    assert {status for _, status in report.statuses} >= {200, 400, 404, 405}
