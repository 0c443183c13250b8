"""How near steps come to what the machine allows, measured in the moment of asking.

The least time of a step is that of an engine in which each operation takes no longer than the limit
that binds it: its weights, K and V read from main memory, or its products in registers.
"""

from kokuban.bench.probes import NativeProbes, Probes, dram_bytes
from kokuban.core.env import max_isa
from kokuban.engine.client import EngineInfo
from kokuban.engine.engine import Engine
from kokuban.plan.cost import CostModel
from kokuban.plan.machine import MachineConstants, at_its_limits

PROBE_S = 0.02
"""For one limit: a round of a small model takes some tenths of a second."""


class Limits:
    """Measures the machine's limits for one engine, and prices its steps by them.

    Args:
        cost: of the engine's model.
        info: of the engine: its threads and the type of its KV.
    """

    def __init__(self, cost: CostModel, info: EngineInfo, probes: Probes) -> None:
        self._cost, self._info, self._probes = cost, info, probes

    def measure(self) -> MachineConstants:
        """The limits of now, of as many threads as the engine has."""
        threads = self._info.threads
        return at_its_limits(
            bytes_per_s=self._probes.bytes_per_s(dram_bytes(), threads),
            float_flops_per_s=self._probes.ops_per_s("fma", threads),
            int8_flops_per_s=self._probes.ops_per_s("int8", threads),
            int8_attention=self._info.kv_dtype == "int8",
        )

    def prefill_s(self, machine: MachineConstants, batch: int, prompt_tokens: int) -> float:
        """The least time of a step that computes so many prompts."""
        return self._cost.on(machine).prompts_s(prompt_tokens, batch)

    def decode_s(self, machine: MachineConstants, batch: int, context_tokens: int) -> float:
        """The least time of a step that gives so many requests one token each."""
        return self._cost.on(machine).decode_s(context_tokens, batch)


def limits_of(engine: Engine) -> Limits | None:
    """None where nothing is known of the engine's steps, or one may give several tokens."""
    info = engine.client.info
    if engine.cost is None or info.speculate:
        return None
    return Limits(engine.cost, info, NativeProbes(isa_cap=max_isa(), probe_s=PROBE_S))
