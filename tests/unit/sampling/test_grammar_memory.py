"""What a grammar holds for as long as somebody keeps it: little, whatever a client asks for."""

import subprocess
import sys
from pathlib import Path

import pytest

from kokuban.core.env import for_child

ROOT = Path(__file__).resolve().parents[3]

HELD = """
import gc
from pathlib import Path
from tests.fakes_text import EOT, byte_tokenizer

from kokuban.observe.memory import settle_heap
from kokuban.sampling.grammar import GrammarCompiler
from kokuban.text.grammar import regex_grammar

def resident_mib():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

settle_heap()
compiler = GrammarCompiler(byte_tokenizer(), [EOT], 262)
compiler.compile(regex_grammar("a"))
before = resident_mib()
held = [compiler.compile(regex_grammar("a{%d}" % (1_000_000 - i))) for i in range(4)]
print(resident_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_a_pattern_of_a_million_repetitions_holds_less_than_20_mib() -> None:
    """Each of them held 82 MiB: a hundred requests could take all of a small machine."""
    told = subprocess.run(
        [sys.executable, "-c", HELD], cwd=ROOT, check=True, capture_output=True, text=True,
        env=for_child(PYTHONPATH=f"{ROOT}:{ROOT / 'src'}"),
    ).stdout  # fmt: skip

    assert float(told) < 4 * 20
