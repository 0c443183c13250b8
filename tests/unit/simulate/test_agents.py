"""Made-up agents: what their names say, and what their conversations share."""

import pytest

from kokuban.core.errors import ConfigError
from kokuban.simulate.agents import AgentLoad, is_made_up, make_agents, parse_agents
from kokuban.simulate.synthesis import Synthesizer


def test_a_name_says_what_differs_from_the_usual() -> None:
    assert parse_agents("agents:") == AgentLoad()
    assert parse_agents("agents:8") == AgentLoad(agents=8)
    assert parse_agents("agents:8,turns=3,tool_s=2.5") == AgentLoad(agents=8, turns=3, tool_s=2.5)
    assert is_made_up("agents:8")
    assert not is_made_up("agents/8.json")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("agents:many", "agents=many is no number"),
        ("agents:8,turns=1.5", "turns=1.5 is no number"),
        ("agents:8,turn=3", "turn is none of agents, turns"),
        ("agents:0", "agents=0 is below 1"),
        ("agents:8,tool_s=-1", "tool_s=-1.0 is negative"),
        ("agents:8,tool_s=nan", "tool_s=nan is negative or has no end"),
        ("agents:8,spread=2", "spread=2.0 is not between 0 and 1"),
        ("agents:8,system=9999999", "more than 4,194,304 tokens"),
    ],
)
def test_a_name_that_says_nothing_sensible_is_refused(name: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        parse_agents(name)


def test_a_turn_repeats_the_prompt_and_the_answer_before_it() -> None:
    load = AgentLoad(agents=2, turns=2, system=50, new=7, answer=5, tool_s=3.0, every_s=1.5)
    trace = make_agents(load)
    tokens = Synthesizer(trace)

    assert [(r.arrival_s, r.prompt_tokens, r.think_s) for r in trace.requests] == [
        (0.0, 57, 0.0),
        (0.0, 69, 3.0),
        (1.5, 57, 0.0),
        (1.5, 69, 3.0),
    ]
    said = tuple(tokens.output_token(0, place) for place in range(5))
    assert tokens.prompt(1)[:62] == (*tokens.prompt(0), *said)
    assert set(tokens.prompt(1)).isdisjoint(tokens.prompt(3))


def test_tools_take_their_time_evenly_spread() -> None:
    load = AgentLoad(agents=50, turns=3, tool_s=10.0, spread=0.5)
    times = [r.think_s for r in make_agents(load).requests if r.think_s]

    assert len(times) == 100
    assert 5.0 <= min(times) < 6.0
    assert 14.0 < max(times) <= 15.0
    assert make_agents(load) == make_agents(load)
