"""A made-up trace: agents that call a tool after each turn, and go on when it has answered."""

import random
from dataclasses import dataclass, fields

from kokuban.core.errors import ConfigError
from kokuban.simulate.trace import Trace, TraceRequest, make_trace

PREFIX = "agents:"
_BLOCK_TOKENS = 16
_MOST_TOKENS = 1 << 22


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLoad:
    """What the agents do. Nothing of one agent's conversation occurs in another's."""

    agents: int = 40
    turns: int = 6
    system: int = 3000
    """Tokens that each begins with."""

    new: int = 400
    """Tokens that each turn adds: the tool's answer, or the user's words."""

    answer: int = 100
    """Tokens of each answer."""

    tool_s: float = 30.0
    """How long the tool takes, from the end of an answer to the next turn."""

    spread: float = 0.0
    """Tools take up to this share longer or shorter, evenly spread."""

    every_s: float = 1.0
    """Between the first turns of two agents."""


def is_made_up(name: str) -> bool:
    """Whether this names agents, and no file."""
    return name.startswith(PREFIX)


def parse_agents(name: str) -> AgentLoad:
    """Read a name such as `agents:40` or `agents:40,turns=6,tool_s=30`.

    Raises:
        ConfigError: a word or a number in it is not known.
    """
    known = {field.name: field.type for field in fields(AgentLoad)}
    first, *words = name.removeprefix(PREFIX).split(",")
    given: dict[str, float] = {}
    for word in ([f"agents={first}"] if first else []) + words:
        key, _, text = word.partition("=")
        if key not in known:
            raise ConfigError(f"{name}: {key} is none of {', '.join(known)}")
        try:
            given[key] = int(text) if known[key] is int else float(text)
        except ValueError:
            raise ConfigError(f"{name}: {key}={text} is no number") from None
    load = AgentLoad(**given)  # type: ignore[arg-type]
    _check(name, load)
    return load


def make_agents(load: AgentLoad) -> Trace:
    """The requests of all agents. The same for the same load."""
    rng = random.Random(0)
    requests = []
    for agent in range(load.agents):
        prompt = load.system
        for turn in range(load.turns):
            prompt += load.new
            requests.append(
                TraceRequest(
                    arrival_s=agent * load.every_s,
                    prompt_tokens=prompt,
                    output_tokens=load.answer,
                    block_ids=tuple(range(prompt // _BLOCK_TOKENS)),
                    scope=f"agent {agent}",
                    session=f"agent {agent}",
                    think_s=load.tool_s * rng.uniform(1 - load.spread, 1 + load.spread)
                    if turn
                    else 0.0,
                )
            )
            prompt += load.answer
    return make_trace(f"{load.agents} agents", _BLOCK_TOKENS, requests)


def _check(name: str, load: AgentLoad) -> None:
    for key in ("agents", "turns", "new", "answer"):
        if getattr(load, key) < 1:
            raise ConfigError(f"{name}: {key}={getattr(load, key)} is below 1")
    for key in ("system", "tool_s", "every_s"):
        if not 0 <= getattr(load, key) < float("inf"):
            raise ConfigError(f"{name}: {key}={getattr(load, key)} is negative or has no end")
    if not 0 <= load.spread <= 1:
        raise ConfigError(f"{name}: spread={load.spread} is not between 0 and 1")
    if load.system + load.turns * (load.new + load.answer) > _MOST_TOKENS:
        raise ConfigError(f"{name}: a conversation has more than {_MOST_TOKENS:,} tokens")
