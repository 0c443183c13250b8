"""Finds the shared data beside the repository, or skips the test that needs it."""

from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2] / "shared" / "data"


def shared_data(name: str) -> Path:
    """The path of a shared file or folder; the calling test is skipped when it is absent."""
    path = _ROOT / name
    if not path.exists():
        pytest.skip(f"shared data is absent: {name}")
    return path
