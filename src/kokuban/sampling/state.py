"""What choosing the next token of one request depends on, besides its logits.

Owns: the request's sampling parameters in native form, and the counts of its tokens.
Asks: nothing. It is built from the request and the output so far, at admission and again after
preemption: the two give the same tokens, since random numbers depend on seed, choice and position
in the output alone.
"""

from collections.abc import Sequence
from dataclasses import replace

from kokuban.core.errors import RequestError
from kokuban.core.request import Request
from kokuban.core.sampling_params import SamplingParams
from kokuban.kernels.sampling import SamplingRow
from kokuban.sampling.grammar import Constraint


class SamplingState:
    """Belongs to the runner's row of one request, for as long as the row lives.

    Making it costs time in proportion to prompt and output if a penalty is set; `append` is O(1).
    A request without penalties keeps no counts.

    Args:
        request: its end_token_ids are impossible before `min_tokens`.
        output_token_ids: what it had generated before it was preempted.
        constraint: what the output must match, as far as it has come; advanced by `append`.
    """

    __slots__ = ("constraint", "num_logprobs", "row")

    def __init__(
        self,
        request: Request,
        output_token_ids: Sequence[int] = (),
        constraint: Constraint | None = None,
    ) -> None:
        params = request.params
        self.num_logprobs = params.logprobs
        """Most likely tokens to report beside the chosen one; None: no logprobs at all."""
        self.constraint = constraint
        self.row = SamplingRow(
            # A grammar may demand the end earlier: its masks know of min_tokens.
            params if constraint is None else replace(params, min_tokens=0),
            seed=request.seed,
            choice=request.choice,
            end_token_ids=tuple(request.end_token_ids),
            prompt_token_ids=request.prompt_token_ids,
            output_token_ids=output_token_ids,
        )

    def append(self, token_id: int) -> None:
        """The output has grown by this token: to be called once for each accepted token."""
        self.row.append(token_id)
        if self.constraint is not None:
            self.constraint.append(token_id)

    @property
    def num_output(self) -> int:
        """Tokens of the output so far."""
        return self.row.num_output


def check_vocabulary(params: SamplingParams, vocab_size: int) -> None:
    """Refuse parameters that name tokens which the model does not have.

    Raises:
        RequestError: a key of logit_bias, or a stop token id, is outside the vocabulary.
    """
    for name, ids in (("logit_bias", params.logit_bias), ("stop_token_ids", params.stop_token_ids)):
        for token_id in ids:
            if not 0 <= token_id < vocab_size:
                raise RequestError(
                    f"{name} names token {token_id}; the ids of this model are 0 to "
                    f"{vocab_size - 1}",
                    param=name,
                )
