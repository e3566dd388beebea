"""Every reader of files that others made, with valid files to change at random: none may fail in an unexpected way.

    python -m tests.builders.fuzzing --seconds 600 [--seed 1] [--reader pickle] [--keep FOLDER]

runs all readers for so long altogether and prints, for each, how many files it read, the slowest, the memory, and what
failed. Pickled checkpoints are only loaded as zip archives; tar archives are read as shards of images.
"""

from __future__ import annotations

import argparse
import pickletools
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.builders.fuzz_readers import READERS, Reader

SLOW_SECONDS = 2.0
_STUCK_SECONDS = 20
_MAX_MEMORY_BYTES = 6_000_000_000  # of addresses: torch alone takes several
# What only code from a file would do; the readers themselves never do any of these.
_CODE = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen", "pickle.find_class")
_CANARY = "canary"  # in the name of every file that the code in our pickles would make
_seen: list[str] | None = None


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _seen is not None and (event.startswith(_CODE) or (event == "os.mkdir" and _CANARY in str(arguments[0]))):
        _seen.append(f"{event} {arguments}")


_is_watching = False


@contextmanager
def watched() -> Iterator[list[str]]:
    """Collect everything that only code from a file would do."""
    global _seen, _is_watching
    if not _is_watching:  # a hook cannot be removed
        sys.addaudithook(_audit)
        _is_watching = True
    _seen = found = []
    try:
        yield found
    finally:
        _seen = None


@dataclass
class Report:
    """What a reader did with changed files."""

    num_files: int = 0
    slowest_seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    examples: dict[str, bytes] = field(default_factory=dict)

    def add(self, fault: str, content: bytes) -> None:
        """Add a fault, with the first file that showed it."""
        self.faults[fault] += 1
        self.examples.setdefault(fault, content)


def run(
    reader: Reader, folder: Path, *, seed: int, count: int = sys.maxsize, seconds: float = 1e9, is_timed: bool = False
) -> Report:
    """Read changed files of one reader, `count` of them or for so many seconds, and return what happened.

    Equal seeds give equal files. `is_timed` reports slow files and stops stuck ones, which a loaded machine can make of
    any.
    """
    report, ends = Report(), time.monotonic() + seconds
    corpus = reader.corpus(folder)
    for index in range(count):
        if time.monotonic() > ends:
            break
        rng = random.Random(f"{reader.name} {seed} {index}")
        content = rng.choice(corpus)
        content = reader.mutate(content, rng) if index else content
        began = time.monotonic()
        with watched() as seen, _limited(_STUCK_SECONDS if is_timed else 0), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                reader.read(content, folder)
            except Exception as error:  # noqa: BLE001
                report.add(_described(error), content)
        took = time.monotonic() - began
        report.num_files += 1
        report.slowest_seconds = max(report.slowest_seconds, took)
        if seen:
            report.add(f"code: {seen[0][:100]}", content)
        if is_timed and took > SLOW_SECONDS:
            report.add(f"slow: over {SLOW_SECONDS} s", content)
    return report


@contextmanager
def _limited(seconds: int) -> Iterator[None]:
    def stop(number: int, frame: object) -> None:
        raise TimeoutError("stuck")

    if not seconds:
        yield
        return
    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _described(error: Exception) -> str:
    last = [f for f in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in f.filename][-1]
    return f"{type(error).__name__} in {Path(last.filename).name}:{last.lineno}: {str(error)[:80]!r}"


def main() -> int:
    """Run the readers for a time and print what they did."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for all readers together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reader", choices=[r.name for r in READERS])
    parser.add_argument("--keep", type=Path, help="a folder for the files that failed")
    options = parser.parse_args()
    readers = [r for r in READERS if options.reader in (None, r.name)]
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_MEMORY_BYTES, _MAX_MEMORY_BYTES))  # beyond it, a MemoryError
    num_faults = 0
    for reader in readers:
        with tempfile.TemporaryDirectory() as folder:
            report = run(reader, Path(folder), seed=options.seed, seconds=options.seconds / len(readers), is_timed=True)
        memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        spent = f"slowest {report.slowest_seconds:5.2f} s, {memory_mb:5.0f} MB"
        print(f"{reader.name:22} {report.num_files:8,} files, {spent}", flush=True)
        for number, (fault, times) in enumerate(report.faults.most_common()):
            print(f"    {times:6} x {fault}", flush=True)
            if options.keep:
                options.keep.mkdir(parents=True, exist_ok=True)
                (options.keep / f"{reader.name}-{number}").write_bytes(report.examples[fault])
        num_faults += len(report.faults)
    return 1 if num_faults else 0


def names_of(program: bytes) -> set[str]:
    """Return what a pickle names by GLOBAL and INST, as Python's own tools list it, up to any damage."""
    found: set[str] = set()
    try:
        for operation, argument, _ in pickletools.genops(program):
            if operation.name in ("GLOBAL", "INST"):
                found.add(str(argument).replace(" ", ".", 1))
    except (ValueError, IndexError, KeyError, EOFError, OverflowError):
        pass
    return found


if __name__ == "__main__":
    sys.exit(main())
