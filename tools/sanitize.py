"""Run a command with the native library under sanitizers, or the thread pool's own stress.

Run:    python tools/sanitize.py address -- python -m benchmarks.fuzz_models --files 10000
        python tools/sanitize.py thread -- python -m pytest -q tests/golden/test_native_tiny.py
        python tools/sanitize.py thread            (csrc/tests/thread_pool_stress.cpp)
Fails:  with the command's exit code; a report of a sanitizer ends the process with 66.

`address` is AddressSanitizer with UndefinedBehaviorSanitizer, `thread` is ThreadSanitizer. Builds
under build/, with GCC, from nothing in some minutes. Python itself is not instrumented: its
runtime is preloaded, and what it leaks is not looked for. One allocation above 1 GiB fails, so that
a size that a file only claims is seen.
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from kokuban.core.env import for_child

ROOT = Path(__file__).resolve().parents[1]
STRESS = "thread_pool_stress"
ROUNDS = 300

SANITIZERS = {"address": "address,undefined", "thread": "thread"}
RUNTIMES = {"address": "libasan.so", "thread": "libtsan.so"}
OPTIONS = {
    "ASAN_OPTIONS": "detect_leaks=0:exitcode=66:allocator_may_return_null=1:"
    "max_allocation_size_mb=1024:quarantine_size_mb=16",
    "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:exitcode=66",
    "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:ignore_noninstrumented_modules=1",
}


FIRST = """import sys

sys.meta_path[:] = [each for each in sys.meta_path if "ScikitBuild" not in type(each).__name__]
"""
"""A sitecustomize: an editable installation's finder would come before PYTHONPATH."""


def build(name: str, target: str) -> Path:
    """Build one target of csrc; returns the build directory."""
    directory = ROOT / "build" / name
    scripts = Path(sys.executable).parent
    nanobind = subprocess.check_output([sys.executable, "-m", "nanobind", "--cmake_dir"], text=True)
    configure = [
        scripts / "cmake", "-S", ROOT / "csrc", "-B", directory, "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={scripts / 'ninja'}", f"-Dnanobind_DIR={nanobind.strip()}",
        f"-DPython_EXECUTABLE={sys.executable}", f"-DKOKUBAN_SANITIZE={SANITIZERS[name]}",
    ]  # fmt: skip
    if ccache := shutil.which("ccache"):
        configure.append(f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}")
    subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    subprocess.run([scripts / "ninja", "-C", directory, target], check=True)
    return directory


def package(directory: Path) -> Path:
    """A folder for PYTHONPATH whose kokuban is ours with the library of a build."""
    source, target = ROOT / "src" / "kokuban", directory / "python" / "kokuban"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for entry in [*source.iterdir(), *directory.glob("_native*.so")]:
        if entry.parent == directory or not entry.match("_native*.so"):
            (target / entry.name).symlink_to(entry)
    (target.parent / "sitecustomize.py").write_text(FIRST)
    return target.parent


def check(path: Path, environment: dict[str, str]) -> None:
    """End here where a child would run another library than the one that was built."""
    command = [sys.executable, "-c", "import kokuban._native as it; print(it.__file__)"]
    found = subprocess.check_output(command, env=environment, cwd=ROOT, text=True).strip()
    if not found.startswith(str(path)):
        sys.exit(f"kokuban._native is imported from {found}, not from {path}")


def runtimes(name: str) -> str:
    """What is to be preloaded: the sanitizer's library, and the one whose throws it watches."""
    found = []
    for library in (RUNTIMES[name], "libstdc++.so.6"):
        asked = ["g++", f"-print-file-name={library}"]
        path = subprocess.check_output(asked, text=True).strip()
        if not Path(path).is_absolute():
            sys.exit(f"g++ has no {library}; install its sanitizer libraries (libgcc-dev)")
        found.append(path)
    return " ".join(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("sanitizer", choices=SANITIZERS)
    parser.add_argument("command", nargs="*", help="after --; none: the thread pool's stress")
    arguments = parser.parse_args()
    name, command = arguments.sanitizer, arguments.command
    if not command:
        stress = build(name, STRESS) / STRESS
        sys.exit(subprocess.run([stress, str(ROUNDS)], env=for_child(**OPTIONS)).returncode)
    path = package(build(name, "_native"))
    environment = for_child(**OPTIONS, LD_PRELOAD=runtimes(name), PYTHONPATH=f"{path}:{ROOT}")
    check(path, environment)
    if command[0] == "python":
        command[0] = sys.executable
    sys.exit(subprocess.run(command, env=environment, cwd=ROOT).returncode)


if __name__ == "__main__":
    main()
