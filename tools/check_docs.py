"""Documents name files; this proves that the files exist.

Run:    python tools/check_docs.py
Checks: every path in back-quotes and every relative link of the Markdown files.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOP = ("src/", "csrc/", "tests/", "tools/", "docs/", "benchmarks/", "changes/")
PACKAGE = ROOT / "src" / "kokuban"
LAYERS = tuple(f"{path.name}/" for path in PACKAGE.iterdir() if path.is_dir())


def documents() -> Iterator[Path]:
    """The Markdown files that people read."""
    yield from ROOT.glob("*.md")
    yield from (ROOT / "docs").rglob("*.md")


def named_paths(text: str) -> Iterator[str]:
    """Paths in back-quotes (with a known folder in front), and targets of relative links."""
    for match in re.finditer(r"`([\w./-]+)`", text):
        if match[1].startswith(TOP + LAYERS):
            yield match[1]
    for match in re.finditer(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", text):
        yield match[1]


def exists(path: str, document: Path) -> bool:
    """Whether a named path is there: from the root, the package or the document's folder."""
    return any((base / path).exists() for base in (ROOT, PACKAGE, document.parent))


def main() -> None:
    missing = [
        f"{document.relative_to(ROOT)}: {path} does not exist"
        for document in documents()
        for path in named_paths(document.read_text())
        if not exists(path, document)
    ]
    print("\n".join(missing) or "every path in the documents exists")
    sys.exit(bool(missing))


if __name__ == "__main__":
    main()
