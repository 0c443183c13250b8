"""Do real clients work? Each runs a chat, a stream and a tool loop against `kokuban serve`.

    python -m tests.clients.run --python VENV/bin/python --node FOLDER --programs FOLDER/.bin \\
        --model qwen.gguf
    python -m tests.clients.run --python VENV/bin/python --only openai,anthropic

VENV holds the Python clients, FOLDER the JavaScript ones (node_modules), FOLDER/.bin the agents;
`docs/clients.md` says how they are installed. What was not given, or is not installed, is named
and skipped. The server is a process with the model of `scripted_model.py`, once for each client.
Exits with 1 if a client failed.

The agents' second request repeats their first: how much of it was found in the cache is printed.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
WEATHER = call_text("get_weather", {"city": "Paris"})
FORCING = ("instructor", "smolagents")
"""These force what the model says, token by token: the script cannot follow, a real model can."""

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


def python_client(name: str, python: Path, model: Path | None, directory: Path) -> str | None:
    """One of `python_clients.py`, on a real model if there is one, else on the script."""
    served = server(directory, WEATHER) if model is None else serving(model, directory / "cache")
    with served as child:
        command = [str(python), str(HERE / "python_clients.py"), child.url, "m", name]
        environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        log = directory / "client.log"
        return run(command, cwd=directory, log=log, environment=environment)


def node_client(name: str, folder: Path, directory: Path) -> str | None:
    with server(directory, WEATHER) as child:
        command = ["node", str(HERE / "js_clients.mjs"), child.url, "m", name]
        return run(command, cwd=folder, log=directory / "client.log")


def agent_client(agent: Agent, programs: Path, directory: Path) -> str | None:
    """A question to an agent; it must carry out a call, send the result and print the answer."""
    home = directory / "home"
    work = home / "work"
    work.mkdir(parents=True)
    (work / "a.txt").write_text("one\n")
    names = {"work": str(work), "home": str(home)}
    arguments = {
        key: value.format(**names) if isinstance(value, str) else value
        for key, value in agent.arguments.items()
    }
    with server(directory, call_text(agent.tool, arguments)) as child:
        agent.prepare(home, child.url)
        environment = {key: v.format(url=child.url) for key, v in agent.environment.items()}
        command = [str(programs / agent.program), *(p.format(**names) for p in agent.command)]
        log = directory / "client.log"
        fault = run(command, cwd=work, log=log, environment={"HOME": str(home), **environment})
        turns = prompts(child)
    if fault:
        return fault
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
    parser.add_argument("--model", type=Path, help="a real model, for clients that force a form")
    parser.add_argument("--only", help="names, with commas")
    args = parser.parse_args()
    only = set(args.only.split(",")) if args.only else None
    root = Path(tempfile.mkdtemp(prefix="clients-"))
    good = True
    for name, work in _clients(args):
        if only is not None and name not in only:
            continue
        if isinstance(work, str):
            print(f"{name}: skipped: {work}")
            continue
        directory = root / name
        directory.mkdir()
        good &= report(name, work(directory), directory)
    sys.exit(0 if good else 1)


def _clients(args: argparse.Namespace) -> Iterator[tuple[str, str | Callable[[Path], str | None]]]:
    """Each client's name, and what runs it or why it cannot run."""
    for name in CLIENTS:
        if not args.python:
            yield name, "no --python"
        elif name in FORCING and not args.model:
            yield name, "no --model: it forces what the model says"
        else:
            model = args.model.resolve() if name in FORCING else None
            yield name, partial(python_client, name, args.python.absolute(), model)
    for name in NODE_CLIENTS:
        yield name, partial(node_client, name, args.node.resolve()) if args.node else "no --node"
    for agent in AGENTS:
        if not args.programs:
            yield agent.name, "no --programs"
        elif not (args.programs / agent.program).exists():
            yield agent.name, f"{args.programs / agent.program} is not installed"
        else:
            yield agent.name, partial(agent_client, agent, args.programs.resolve())


if __name__ == "__main__":
    main()
