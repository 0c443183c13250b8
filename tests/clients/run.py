"""Do real clients work? Each runs a chat, a stream and a tool loop against `kokuban serve`.

    python -m tests.clients.run --python VENV/bin/python --node FOLDER --programs FOLDER/.bin \\
        --model smollm2.gguf
    python -m tests.clients.run --python VENV/bin/python --only openai,anthropic

VENV holds the Python clients, FOLDER the JavaScript ones (node_modules), FOLDER/.bin the agents;
`docs/clients.md` says how they are installed. What was not given, or is not installed, is named
and skipped. The server is a process with the model of `scripted_model.py`, once for each client,
and then with the real one, if it is given. Exits with 1 if a client failed.

The agents' second request repeats their first: how much of it was found in the cache is printed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

from tests.clients.agent_programs import AGENTS, Agent
from tests.clients.python_clients import ANSWER, CLIENTS
from tests.clients.scripted_model import call_text, write_model
from tests.server.child import Child, serving

from kokuban.core.env import for_child

HERE = Path(__file__).resolve().parent
NODE_CLIENTS = ("openai-node", "anthropic-node", "ai-sdk", "ai-sdk-responses")
TIMEOUT_S = 240
REAL_CONTEXT = 4096
WEATHER = call_text("get_weather", {"city": "Paris"})
FORCING = ("instructor", "smolagents")
"""These force what the model says, token by token: the script cannot follow, a real model can."""

Work = Callable[[Path], str | None]
"""Runs a client in a directory, and says what went wrong."""

LINE = re.compile(r"\b(?:chat|responses|messages)\b.*?prompt=(\d+).*?cached=(\d+)")


@contextmanager
def server(directory: Path, call: str) -> Iterator[Child]:
    """A server with a scripted model."""
    write_model(directory / "model", call, ANSWER)
    with serving(directory / "model", directory / "cache", "--threads", "2") as child:
        yield child


def run(
    command: Sequence[str], *, cwd: Path, log: Path, environment: dict[str, str] | None = None
) -> str | None:
    """What went wrong; None: nothing."""
    with log.open("w") as file:
        try:
            ended = subprocess.run(
                command, cwd=cwd, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                env=for_child(PWD=str(cwd), **(environment or {})), timeout=TIMEOUT_S, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return f"did not end within {TIMEOUT_S} s"
    if ended.returncode:
        lines = log.read_text(errors="replace").strip().splitlines() or ["(it said nothing)"]
        return f"exit code {ended.returncode}: {lines[-1][:200]}"
    return None


def prompts(child: Child) -> list[tuple[int, int]]:
    """Prompt and cached tokens of each request that the server has answered."""
    found = LINE.findall(child.log.read_text())
    return [(int(prompt), int(cached)) for prompt, cached in found]


def real(directory: Path, model: Path) -> AbstractContextManager[Child]:
    """A server with a real model. A small one seldom ends by itself; its context ends it."""
    return serving(model, directory / "cache", "--max-context-tokens", str(REAL_CONTEXT))


@contextmanager
def served(directory: Path, model: Path | None) -> Iterator[tuple[Child, str]]:
    """A server for an SDK, with the name of its kind of model."""
    if model is None:
        with server(directory, WEATHER) as child:
            yield child, "scripted"
    else:
        with real(directory, model) as child:
            yield child, "real"


def python_client(name: str, python: Path, model: Path | None, directory: Path) -> str | None:
    """One of `python_clients.py`."""
    with served(directory, model) as (child, kind):
        command = [str(python), str(HERE / "python_clients.py"), child.url, "m", name, kind]
        environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        log = directory / "client.log"
        return run(command, cwd=directory, log=log, environment=environment)


def node_client(name: str, folder: Path, model: Path | None, directory: Path) -> str | None:
    """One of `js_clients.mjs`."""
    with served(directory, model) as (child, kind):
        command = ["node", str(HERE / "js_clients.mjs"), child.url, "m", name, kind]
        return run(command, cwd=folder, log=directory / "client.log")


def agent_client(agent: Agent, programs: Path, model: Path | None, directory: Path) -> str | None:
    """A question to an agent. It must carry out the script's call, send the result and print the
    answer; a real model says what it likes, and the agent must end well."""
    home = directory / "home"
    work = home / "work"
    work.mkdir(parents=True)
    (work / "a.txt").write_text("one\n")
    names = {"work": str(work), "home": str(home)}
    arguments = {
        key: value.format(**names) if isinstance(value, str) else value
        for key, value in agent.arguments.items()
    }
    call = call_text(agent.tool, arguments)
    host = real(directory, model) if model else server(directory, call)
    with host as child:
        agent.prepare(home, child.url)
        environment = {key: v.format(url=child.url) for key, v in agent.environment.items()}
        command = [str(programs / agent.program), *(p.format(**names) for p in agent.command)]
        log = directory / "client.log"
        fault = run(command, cwd=work, log=log, environment={"HOME": str(home), **environment})
        turns = prompts(child)
    if fault or model:
        return fault or (None if turns else "sent no request that was answered")
    if ANSWER not in log.read_text(errors="replace"):
        return "did not print the answer"
    if not agent.tool:
        return None
    if len(turns) < 2:
        return f"sent {len(turns)} requests: it did not carry out the call"
    # The longest pair: some ask for a title of the conversation in between.
    best = max(turns[1:], key=lambda turn: turn[1])
    first = max(prompt for prompt, _ in turns if prompt < best[0])
    print(f"    turn 1: {first} prompt tokens; turn 2: {best[0]}, of them {best[1]} cached")
    return None if best[1] >= 0.95 * first else "turn 2 did not find turn 1's prompt in the cache"


def report(name: str, fault: str | None, directory: Path) -> bool:
    """Print a line, and where the logs are if something went wrong."""
    print(f"{name}: {'ok' if fault is None else f'FAILED: {fault}'}", flush=True)
    if fault is not None:
        print(f"    logs: {directory}")
    return fault is None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, help="python of the environment with the clients")
    parser.add_argument("--node", type=Path, help="folder whose node_modules hold the clients")
    parser.add_argument("--programs", type=Path, help="folder of the agents' programs")
    parser.add_argument("--model", type=Path, help="a real model, on which they run as well")
    parser.add_argument("--only", help="names, with commas")
    args = parser.parse_args()
    only = set(args.only.split(",")) if args.only else None
    root = Path(tempfile.mkdtemp(prefix="clients-"))
    good = True
    for name, work in _clients(args):
        if only is not None and name.split(" ")[0] not in only:
            continue
        if isinstance(work, str):
            print(f"{name}: skipped: {work}")
            continue
        directory = root / name.replace(" ", "-")
        directory.mkdir()
        good &= report(name, work(directory), directory)
    sys.exit(0 if good else 1)


def _clients(args: argparse.Namespace) -> Iterator[tuple[str, str | Work]]:
    """Each client's name, and what runs it or why it cannot run."""
    models: list[Path | None] = [None, *([args.model.resolve()] if args.model else [])]
    for model in models:
        on = f" on {model.stem}" if model else ""
        for name in CLIENTS:
            if not args.python:
                yield name + on, "no --python"
            elif name in FORCING and not model:
                yield name, "the script cannot follow what it forces: see --model"
            else:
                yield name + on, partial(python_client, name, args.python.absolute(), model)
        for name in NODE_CLIENTS:
            work = partial(node_client, name, args.node.resolve(), model) if args.node else None
            yield name + on, work or "no --node"
        for agent in AGENTS:
            yield agent.name + on, _agent(agent, args.programs, model)


def _agent(agent: Agent, programs: Path | None, model: Path | None) -> str | Work:
    if not programs:
        return "no --programs"
    if not (programs / agent.program).exists():
        return f"{programs / agent.program} is not installed"
    if model and not agent.short:
        return "its prompt does not fit a small model's context"
    return partial(agent_client, agent, programs.resolve(), model)


if __name__ == "__main__":
    main()
