# The native module. Its types are checked at its border (`kernels/`, `runner/native.py`), not here.
from typing import Any

def __getattr__(name: str) -> Any: ...
