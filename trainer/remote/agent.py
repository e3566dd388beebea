"""The program at the other end of a connection. Its text is sent over SSH, so it needs nothing but a Python 3.

It reads requests from standard input and answers each on standard output: a line of JSON, in which `body` is the number
of bytes that follow it. It ends when the connection does; the trainings that it has started do not.

Everything is in one folder: `files/` has the content of every file under its digest, `trees/` has folders of hard links
to them, which never change, and `jobs/` has a folder for each training.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

READY = "darkroom-agent-1"
LOG, LIVE, OUTPUT, INBOX, RUNNING = "events.jsonl", "live.jsonl", "output.txt", "commands.jsonl", "running"
_SENT_AT_ONCE = 1 << 20
_DIGEST_BYTES = 20
_CHANGED = "a file was changed while it was sent"
_POLL_SECONDS = 0.05
_CARDS = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]


def digest_of(path: Path, size: int = -1) -> str:
    """Return the digest of a file, or of its first bytes, as the caches compute it. Raises OSError."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    with path.open("rb") as file:
        while size and (chunk := file.read(_SENT_AT_ONCE if size < 0 else min(size, _SENT_AT_ONCE))):
            digest.update(chunk)
            size -= len(chunk) if size > 0 else 0
    return digest.hexdigest()


class Agent:
    """Answers the requests of a connection: every public method is one, and returns its answer and its bytes."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder).expanduser().absolute()
        self._files, self._trees, self._jobs = (self.folder / name for name in ("files", "trees", "jobs"))

    def hello(self, _body: bytes) -> tuple[Any, bytes]:
        """Create the folder, and describe the machine without its cards."""
        for folder in (self._files, self._trees, self._jobs):
            folder.mkdir(parents=True, exist_ok=True)
        facts = {
            "folder": str(self.folder),
            "python": sys.executable,
            "version": list(sys.version_info[:2]),
            "system": sys.platform,
            "machine": platform.machine(),
            "glibc": platform.libc_ver()[1],
            "free_bytes": shutil.disk_usage(self.folder).free,
        }
        return facts, b""

    def cards(self, _body: bytes) -> tuple[Any, bytes]:
        """Return the name, memory and driver of each NVIDIA card, or why there are none."""
        try:
            listed = subprocess.run(_CARDS, capture_output=True, text=True, timeout=20, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            reason = "no NVIDIA driver" if isinstance(error, OSError) else "the NVIDIA driver does not answer"
            return {"cards": [], "reason": reason}, b""
        cards = [line.strip() for line in listed.stdout.splitlines() if line.strip()]
        return {"cards": cards, "reason": "the driver lists none"}, b""

    def missing(self, _body: bytes, digests: list[str]) -> tuple[Any, bytes]:
        """Return the digests of missing contents with the bytes sent of each so far, and the free bytes on the disk."""
        parts = {}
        for digest in digests:
            if not self._place(digest).exists():
                part = self._part(digest)
                parts[digest] = part.stat().st_size if part.exists() else 0
        return {"parts": parts, "free_bytes": shutil.disk_usage(self.folder).free}, b""

    def put(self, body: bytes, files: list[tuple[str, int]]) -> tuple[Any, bytes]:
        """Store small contents, which follow one after another."""
        start = 0
        for digest, size in files:
            content = body[start : start + size]
            start += size
            if hashlib.blake2b(content, digest_size=_DIGEST_BYTES).hexdigest() != digest:
                raise ValueError(_CHANGED)
            part = self._part(digest)
            part.write_bytes(content)
            self._keep(part, digest)
        return None, b""

    def part(self, body: bytes, digest: str, offset: int) -> tuple[Any, bytes]:
        """Store a part of a large content; the file ends after it."""
        with self._part(digest).open("ab") as file:
            file.truncate(offset)
            file.write(body)
        return None, b""

    def finish(self, _body: bytes, digest: str) -> tuple[Any, bytes]:
        """Complete a content if it has its digest; otherwise it is removed."""
        part = self._part(digest)
        if digest_of(part) != digest:
            part.unlink()
            raise ValueError(_CHANGED)
        self._keep(part, digest)
        return None, b""

    def tree(self, _body: bytes, key: str, files: list[tuple[str, str]]) -> tuple[Any, bytes]:
        """Make a folder of stored contents by their names in it, and return its path."""
        tree = self._trees / key
        if not tree.exists():
            temporary = self._trees / f".{key}-{os.getpid()}"
            shutil.rmtree(temporary, ignore_errors=True)
            for folder in {(temporary / name).parent for name, _ in files}:
                folder.mkdir(parents=True, exist_ok=True)
            for name, digest in files:
                place = temporary / name
                try:
                    os.link(self._place(digest), place)
                except OSError as error:
                    if error.errno == errno.ENOSPC:
                        raise
                    shutil.copyfile(self._place(digest), place)  # a file system without hard links
            with contextlib.suppress(FileExistsError, OSError):
                temporary.rename(tree)
            shutil.rmtree(temporary, ignore_errors=True)
        return str(tree), b""

    def write(self, body: bytes, name: str) -> tuple[Any, bytes]:
        """Write a small file of the folder, and return its path."""
        place = self.folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(body)
        return str(place), b""

    def command(self, _body: bytes, arguments: list[str], cwd: str, seconds: float) -> tuple[Any, bytes]:
        """Run a program to its end, and return its exit code and its output."""
        done = subprocess.run(
            arguments, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=seconds, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout[-_SENT_AT_ONCE:]

    def start(
        self, _body: bytes, job: str, arguments: list[str], cwd: str, environment: dict[str, str], again: bool
    ) -> tuple[Any, bytes]:
        """Start the training of a job, in a process that outlives this connection and holds a lock until it ends.

        A job that was started before, by a request whose answer was lost, is started once more only with `again`.
        """
        folder = self._jobs / job
        if (folder / LIVE).exists() and not again:
            return None, b""
        with contextlib.ExitStack() as stack:
            live, output = (stack.enter_context((folder / name).open("ab")) for name in (LIVE, OUTPUT))
            lock = stack.enter_context((folder / RUNNING).open("ab"))
            if not _is_free(lock, alone=True):
                raise ValueError("the run is still training there")
            (folder / INBOX).unlink(missing_ok=True)  # of a process that was killed: it was paused, for example
            process = subprocess.Popen(
                arguments,
                cwd=cwd,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=live,
                stderr=output,
                start_new_session=True,
                pass_fds=[lock.fileno()],
            )
            process.returncode = 0  # no wait for it, about which Python would warn
        return None, b""

    def running(self, _body: bytes) -> tuple[Any, bytes]:
        """Return the names of the jobs that train."""
        return [job.name for job in sorted(self._jobs.iterdir()) if self._is_running(job)], b""

    def follow(self, _body: bytes, job: str, log: int, live: int, seconds: float) -> tuple[Any, bytes]:
        """Wait for new events of a job: those in the log of its run from a byte on, and those that it has printed.

        A negative byte is the end of what it has printed.
        """
        folder, until = self._jobs / job, time.monotonic() + seconds
        if not (folder / LIVE).exists():
            return None, b""
        live = (folder / LIVE).stat().st_size if live < 0 else live
        while True:
            is_running = self._is_running(folder)  # before reading: no event can follow the last one
            run_dir = max((folder / "workspace" / "runs").glob("*"), default=None)
            news = _lines(run_dir / LOG, log) if run_dir is not None else b""
            printed = _lines(folder / LIVE, live)
            if news or printed or not is_running or time.monotonic() > until:
                break
            time.sleep(_POLL_SECONDS)
        facts = {"is_running": is_running, "run_dir": str(run_dir or ""), "num_log_bytes": len(news), "live": live}
        return facts, news + printed

    def send(self, body: bytes, job: str) -> tuple[Any, bytes]:
        """Give a line to a job as a command."""
        with (self._jobs / job / INBOX).open("ab", buffering=0) as file:
            file.write(body)
        return None, b""

    def files(self, _body: bytes, folder: str, without: list[str]) -> tuple[Any, bytes]:
        """Return the files of a folder, or the file itself: names, sizes and times."""
        top, entries = Path(folder), []
        if top.is_file():
            return [_facts(top, "")], b""
        for place, folders, names in os.walk(folder):
            inside = Path(place).relative_to(top)
            folders[:] = [name for name in folders if (inside / name).as_posix() not in without]
            for name in names:
                with contextlib.suppress(OSError):  # it has disappeared
                    entries.append(_facts(Path(place, name), (inside / name).as_posix()))
        return sorted(entries), b""

    def read(self, _body: bytes, path: str, offset: int, size: int) -> tuple[Any, bytes]:
        """Return a part of a file."""
        with Path(path).open("rb") as file:
            file.seek(offset)
            return None, file.read(size)

    def output(self, _body: bytes, job: str) -> tuple[Any, bytes]:
        """Return the end of a job's output besides its events."""
        with (self._jobs / job / OUTPUT).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 4096))
            return None, file.read()

    def digest(self, _body: bytes, path: str, size: int) -> tuple[Any, bytes]:
        """Return the digest of the first bytes of a file."""
        return digest_of(Path(path), size), b""

    def _is_running(self, job: Path) -> bool:
        try:
            with (job / RUNNING).open("ab") as lock:
                return not _is_free(lock)
        except OSError:
            return False

    def _keep(self, part: Path, digest: str) -> None:
        place = self._place(digest)
        place.parent.mkdir(exist_ok=True)
        part.chmod(0o444)  # it is in several trees
        part.replace(place)

    def _place(self, digest: str) -> Path:
        return self._files / digest[:2] / digest

    def _part(self, digest: str) -> Path:
        return self._files / f"{digest}.part"


def _facts(path: Path, name: str) -> tuple[str, int, int]:
    status = path.stat()
    return name, status.st_size, status.st_mtime_ns


def _is_free(lock: Any, *, alone: bool = False) -> bool:
    """Return whether no training holds the lock, and lock it meanwhile; not `alone`, others may look, too."""
    import fcntl

    try:
        fcntl.flock(lock, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _lines(path: Path, start: int) -> bytes:
    """Return the whole lines of a file from a byte on, not all at once if they are many."""
    try:
        with path.open("rb") as file:
            file.seek(start)
            content = file.read(_SENT_AT_ONCE)
            while b"\n" not in content and (more := file.read(_SENT_AT_ONCE)):
                content += more
    except OSError:
        return b""
    return content[: content.rfind(b"\n") + 1]


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the connection ends."""
    agent = None
    answers.write(f"{READY}\n".encode())
    answers.flush()
    while line := requests.readline():
        request = json.loads(line)
        body = requests.read(request.pop("body"))
        name = request.pop("request")
        try:
            if name == "hello":
                agent = Agent(request.pop("folder"))
            result, content = getattr(agent, name)(body, **request)
            answer = {"result": result}
        except OSError as error:
            answer, content = {"errno": error.errno, "reason": error.strerror, "path": str(error.filename or "")}, b""
        except subprocess.SubprocessError:
            answer, content = {"reason": "it did not end in time"}, b""
        except ValueError as error:
            answer, content = {"reason": str(error)}, b""
        answers.write(json.dumps({**answer, "body": len(content)}).encode() + b"\n" + content)
        answers.flush()


if __name__ == "__main__":
    serve(sys.stdin.buffer, sys.stdout.buffer)
