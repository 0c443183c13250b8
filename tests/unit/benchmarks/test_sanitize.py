"""The folder that puts a sanitized library in the place of ours."""

from pathlib import Path

import pytest
from tools import sanitize


def test_all_of_the_package_is_linked_but_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, build = tmp_path / "src" / "kokuban", tmp_path / "build"
    for path in (source / "core" / "errors.py", source / "_native.so", build / "_native.x.so"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    monkeypatch.setattr(sanitize, "ROOT", tmp_path)

    for _ in range(2):  # A second time it is made anew.
        folder = sanitize.package(build)

    assert sorted(path.name for path in (folder / "kokuban").iterdir()) == ["_native.x.so", "core"]
    assert (folder / "kokuban" / "core" / "errors.py").exists()
    assert (folder / "kokuban" / "_native.x.so").resolve() == build / "_native.x.so"
