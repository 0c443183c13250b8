"""What a long-lived process does with memory that is free."""

import ctypes
import subprocess
import sys

import pytest

from kokuban.observe.memory import settle_heap

LARGE = 8 * 2**20

MAPPED = """
import ctypes, sys
from kokuban.observe.memory import settle_heap

class Heap(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
        "fordblks", "keepcost")]

heap = ctypes.CDLL(None).mallinfo2
heap.restype = Heap
if sys.argv[1] == "settled":
    assert settle_heap()
bytearray({size})  # Is free again, and raises glibc's own threshold.
before = heap().hblkhd
kept = bytearray({size})
print(heap().hblkhd - before >= {size})
"""
"""Is a second large block apart from the small ones, as a mapping of its own?"""


def is_mapped(how: str) -> str:
    code = MAPPED.format(size=LARGE)
    return subprocess.run(
        [sys.executable, "-c", code, how], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallinfo2"), reason="this C library is not glibc 2.33 or later"
)
def test_large_blocks_stay_apart_from_small_ones_and_go_back_to_the_system() -> None:
    assert is_mapped("settled") == "True"
    assert is_mapped("as it was") == "False"


def test_a_c_library_without_the_options_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctypes.CDLL", lambda name: object())
    assert not settle_heap()
