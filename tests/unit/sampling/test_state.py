import pytest

from kokuban.core.errors import RequestError
from kokuban.core.request import Request, RequestId
from kokuban.core.sampling_params import SamplingParams
from kokuban.sampling.state import SamplingState, check_vocabulary


def test_a_state_counts_on_from_the_output_before_preemption() -> None:
    request = Request(id=RequestId("a"), prompt_token_ids=(1, 2), params=SamplingParams())

    state = SamplingState(request, (5, 6, 7))
    assert state.num_output == 3

    state.append(8)
    assert state.num_output == 4


@pytest.mark.parametrize("token_id", [-1, 100, 999_999])
@pytest.mark.parametrize("name", ["logit_bias", "stop_token_ids"])
def test_an_id_outside_the_vocabulary_is_refused_by_name(name: str, token_id: int) -> None:
    """B27."""
    params = (
        SamplingParams(logit_bias={token_id: 5.0})
        if name == "logit_bias"
        else SamplingParams(stop_token_ids=(token_id,))
    )

    with pytest.raises(
        RequestError, match=rf"{name} names token {token_id}; the ids of this model are 0 to 99"
    ) as caught:
        check_vocabulary(params, vocab_size=100)

    assert caught.value.param == name


def test_the_first_and_the_last_id_are_in_the_vocabulary() -> None:
    check_vocabulary(SamplingParams(logit_bias={0: 1.0, 99: 1.0}), vocab_size=100)
