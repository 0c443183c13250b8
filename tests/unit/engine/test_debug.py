"""KOKUBAN_DEBUG: an engine that checks itself."""

import pytest
from tests.fakes import FakeRunner, make_request
from tests.unit.scheduler.helpers import Bench

from kokuban.core.request import BlockId
from kokuban.engine.core import EngineCore
from kokuban.kvcache.contents import BlockContent
from kokuban.kvcache.manager import Manager
from kokuban.kvcache.pool import BlockPool
from kokuban.observe.clock import SystemClock


class Executor:
    depth = 0

    def __init__(self, runner: FakeRunner) -> None:
        self.submit = runner.run
        self.collect = lambda: None
        self.close = lambda: None


@pytest.mark.parametrize("debug", [False, True])
def test_an_idle_engine_checks_its_books_in_debug_mode(debug: bool) -> None:
    bench = Bench()
    core = EngineCore(
        bench.scheduler,
        bench.manager,
        Executor(bench.runner),  # type: ignore[arg-type]
        SystemClock(),
        debug=debug,
    )
    core.rest()
    bench.pool.allocate(1)  # Nobody's.

    if debug:
        with pytest.raises(AssertionError, match="in 0 tables but held 1 times"):
            core.rest()
    else:
        core.rest()


def test_in_debug_mode_a_hit_on_other_tokens_is_a_fault() -> None:
    bench = Bench(prefix_cache=True)
    space = bench.manager._key_space
    pool = BlockPool(10)
    manager = Manager(pool, block_size=16, key_space=space, compares=True)
    first, other = make_request("a", 40).prompt_token_ids, make_request("b", 40).prompt_token_ids
    chain = manager.make_chain("")
    assert chain is not None
    manager.begin(make_request("a").id, chain)
    manager.grow(make_request("a").id, 40)
    manager.advance(make_request("a").id, 40, first)
    # As if two texts had one key.
    forged = manager.make_chain("")
    assert forged is not None
    key = forged.key(other, 0)
    pool._index._by_content[BlockContent(0, key)] = BlockId(0)
    found = manager.find_cached_prefix(forged, other)
    assert found.num_tokens == 16

    with pytest.raises(AssertionError, match="block 0 was found for tokens 0 and up"):
        manager.begin(make_request("b").id, forged, found, other)
