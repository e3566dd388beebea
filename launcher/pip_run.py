"""Runs pip: its output goes into a log, its progress onto one line of the terminal, and its errors become messages."""

import os
import queue
import re
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO

from launcher.progress import Progress
from launcher.requirements import Package, normalise

_TICK_SECONDS = 0.3

# Patterns in the output of a failed run, the most specific cause first.
_CAUSES = {
    "disk": r"No space left on device|\[Errno 28\]|not enough space on the disk",
    "read-only": r"\[Errno 13\]|\[Errno 30\]|Permission denied|Read-only file system",
    "managed": r"externally-managed-environment",
    "network": r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|getaddrinfo failed|"
    r"Network is unreachable|ConnectTimeout|ReadTimeout|Connection refused|Connection reset|ProxyError|"
    r"Max retries exceeded",
    "conflict": r"ResolutionImpossible|conflicting dependencies",
}


class PipError(Exception):
    """pip failed; `cause` is a key of the known causes or "", and `reason` its last error line."""

    def __init__(self, cause: str, reason: str) -> None:
        super().__init__(reason)
        self.cause = cause
        self.reason = reason


class OutputReader:
    """Summarizes pip's output lines as a phrase about its progress, and as a share.

    pip does not report how many packages it will download: `num_wanted` at least, and one more than so far.
    """

    def __init__(self, num_wanted: int = 1) -> None:
        self._num_wanted = num_wanted
        self._share = 0.0
        self._collected: set[Package] = set()
        self._now = ""
        self._amount = ""
        self._num_fetched = 0  # files of packages whose download has begun
        self._loaded = 0.0  # the share of the last one
        self._to_install: list[Package] = []

    def take(self, line: str) -> bool:
        """Read one line; False if it is not worth logging."""
        raw = re.match(r"Progress (\d+) of (\d+)", line)
        if raw:
            self._amount = f"{_megabytes(raw[1])} of {_megabytes(raw[2])}"
            self._loaded = min(1.0, int(raw[1]) / max(1, int(raw[2])))
            return False
        collecting = re.match(r"Collecting ([\w.-]+)", line)
        fetching = re.match(r"\s*(?:Downloading|Using cached|Processing) (\S+?)(?:\s\(([^)]+)\))?\s*$", line)
        installing = re.match(r"Installing collected packages: (.+)", line)
        if collecting:
            self._now, self._amount = normalise(collecting[1]), ""
            self._collected.add(self._now)
        elif fetching and not fetching[1].endswith(".metadata"):
            self._now = re.split(r"-\d", fetching[1].rsplit("/", 1)[-1])[0]
            self._num_fetched, self._loaded = self._num_fetched + 1, 0.0
            self._amount = fetching[2] if re.fullmatch(r"[\d.]+ \w+", fetching[2] or "") else ""
        elif installing:
            self._to_install = [normalise(name) for name in installing[1].strip().split(", ")]
        elif "Retrying (" in line:
            self._amount = "the network does not respond, retrying"
        return True

    def state(self, num_installed: int) -> str:
        """pip's progress, given the number of packages installed since it started."""
        if self._to_install:
            done = min(num_installed, len(self._to_install) - 1)
            return f"Installing package {done + 1} of {len(self._to_install)}: {self._to_install[done]}"
        if not self._now:
            return "Resolving packages"
        amount = f" ({self._amount})" if self._amount else ""
        return f"Downloading package {max(len(self._collected), 1)}: {self._now}{amount}"

    def share(self, num_installed: int) -> float:
        """The share of the work that is done, which never shrinks: half is downloading, half installing."""
        if self._to_install:
            share = 0.5 + 0.5 * min(1.0, num_installed / len(self._to_install))
        else:
            # pip may collect all packages first, and then download them, or each in turn.
            total = max(self._num_wanted, len(self._collected) + 1, self._num_fetched)
            share = 0.5 * max(0.0, self._num_fetched - 1 + self._loaded) / total
        self._share = max(self._share, share)
        return self._share

    @property
    def num_to_install(self) -> int:
        """The number of packages that pip is going to install."""
        return len(self._to_install)


def run_pip(
    command: Sequence[str],
    *,
    log: IO[str],
    progress: Progress,
    count_packages: Callable[[], int],
    num_wanted: int = 1,
    environ: Mapping[str, str] = os.environ,
) -> int:
    """Run `pip install` of at least `num_wanted` packages to its end; return how many it installed.

    Raises `PipError`.
    """
    log.write(f"$ {' '.join(command)}\n")
    log.flush()
    reading, had, errors = OutputReader(num_wanted), count_packages(), []
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(environ),
        encoding="utf-8",
        errors="replace",
        close_fds=False,  # it inherits the environment's lock
    ) as process:
        assert process.stdout is not None
        lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True).start()
        try:
            for line in _with_ticks(lines):
                if line is not None and reading.take(line):
                    log.write(line)
                    if re.match(r"\s*(ERROR|error|OSError|WARNING: Retrying)", line):
                        errors.append(line.strip())
                num_installed = count_packages() - had
                progress.show(reading.state(num_installed), reading.share(num_installed))
        except BaseException:
            process.terminate()
            raise
    log.flush()
    progress.close()
    if process.returncode != 0:
        raise _error(errors, process.returncode)
    return reading.num_to_install


def installed_count(folder: Path) -> int:
    """The number of packages in a site-packages folder."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.name.endswith(".dist-info") for entry in entries)
    except OSError:
        return 0


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """pip's environment variables: the user's own, except those that would install somewhere else."""
    elsewhere = {"PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_LOG"}
    kept = {name: value for name, value in environ.items() if name not in elsewhere}
    retries = {} if "PIP_RETRIES" in environ else {"PIP_RETRIES": "2"}
    return {**kept, **retries, "PIP_USER": "0", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}


def _pass_on(stream: IO[str], lines: "queue.SimpleQueue[str | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _with_ticks(lines: "queue.SimpleQueue[str | None]") -> Iterable[str | None]:
    """The lines as they arrive, and None after each moment without one."""
    while True:
        try:
            line = lines.get(timeout=_TICK_SECONDS)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line


def _error(errors: list[str], exit_code: int) -> PipError:
    output = "\n".join(errors)
    cause = next((cause for cause, pattern in _CAUSES.items() if re.search(pattern, output)), "")
    of_pip = [line for line in errors if line.startswith(("ERROR", "error", "OSError"))]
    return PipError(cause, of_pip[-1] if of_pip else f"exit code {exit_code}")


def _megabytes(num_bytes: str) -> str:
    return f"{int(num_bytes) / 1e6:.0f} MB"
