"""What comes up from below the pool, to the token."""

import pytest
from tests.fakes import make_request
from tests.unit.scheduler.helpers import Bench


@pytest.mark.parametrize("windows", [(None,), (None, 40)])
@pytest.mark.parametrize("num_tokens", [31, 32, 33, 47, 48])
def test_a_prompt_that_is_asked_again_comes_up_but_for_its_last_token(
    windows: tuple[int | None, ...], num_tokens: int
) -> None:
    """Also when it ends where a block ends: the full block lends all but that token."""
    bench = Bench(8 * len(windows), prefix_cache=True, num_slots=100, windows=windows)
    prompt = make_request("one", num_tokens).prompt_token_ids
    bench.add(make_request("one", prompt=prompt, max_tokens=1))
    bench.run()
    bench.idle()
    bench.add(make_request("other", 100, max_tokens=1))
    bench.run()

    bench.add(make_request("again", prompt=prompt, max_tokens=3))
    bench.run()

    usage = bench.last_event("again").usage
    assert usage is not None
    assert usage.cached_tokens == num_tokens - 1
    assert usage.cached_ram_tokens > 0
    bench.assert_text_as_alone("again", 3)
