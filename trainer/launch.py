"""Starting a run on a thread of its own, beside a window that must stay smooth. Torch-free.

The measures here were each measured beside a Tk heartbeat: automatic garbage collection with torch loaded holds the
interpreter lock for up to 0.9 s, so it is off while a run lasts and collection happens at quiet points; the big
shared libraries are loaded through ctypes, which lets go of the lock, before `import torch` needs them; and a short
switch interval keeps event draining within its budget. Everything process-wide is put back when the run ends.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import importlib.util
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from modules.config.schema import Config
from trainer.commands import Command, CommandDesk
from trainer.events import Event, PhaseChanged

if TYPE_CHECKING:
    from modules.data.datasets import Datasets

SWITCH_INTERVAL_SECONDS = 0.0005
_ENGINE = "trainer.run.execute"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What to run: a fresh run of a config, one that goes on from a backup, or only the caches.

    `resume_from` is a backup, a run's folder or a workspace. Beside a window one processor core is left to it.
    `allowed_code` are hashes of files of the user's own code that may run beside those that were approved for good.
    `datasets` are the images that the check of this config has found, so that they need not be scanned again.
    """

    config: Config
    kind: Literal["train", "resume", "cache"] = "train"
    resume_from: Path | None = None
    beside_window: bool = True
    allowed_code: frozenset[str] = frozenset()
    datasets: Datasets | None = None


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A run under way: its events to drain, its desk for commands, its thread."""

    thread: threading.Thread
    events: queue.SimpleQueue[Event]
    desk: CommandDesk = field(default_factory=CommandDesk)

    def send(self, command: Command) -> None:
        """Leave a command for the run; never blocks."""
        self.desk.put(command)

    @property
    def is_alive(self) -> bool:
        """Whether the thread still works. Events may wait in the queue after it ended."""
        return self.thread.is_alive()


def launch(request: RunRequest) -> RunHandle:
    """Start a run on a new thread and return its handle at once."""
    events: queue.SimpleQueue[Event] = queue.SimpleQueue()
    desk = CommandDesk()
    thread = threading.Thread(target=_main, args=(request, events.put, desk), name="darkroom-training", daemon=True)
    handle = RunHandle(thread, events, desk)
    thread.start()
    return handle


def _main(request: RunRequest, emit: Callable[[Event], None], desk: CommandDesk) -> None:
    with smooth_interpreter():
        emit(PhaseChanged("starting", "loading the engine"))
        import_engine()
        # By name: the window may not import the engine, and the import contracts follow imports inside functions.
        importlib.import_module(_ENGINE).execute_guarded(request, emit=emit, desk=desk)


@contextmanager
def smooth_interpreter() -> Iterator[None]:
    """Keep the interpreter lock from being held for long while a run lasts; put everything back afterwards."""
    interval, was_collecting = sys.getswitchinterval(), gc.isenabled()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if was_collecting:
            gc.enable()


class QuietPoints:
    """Where garbage is collected by hand while a run lasts beside a window: between steps, and not too often.

    Young garbage only, which is what steps leave behind: a full collection also walks the model and takes longer. What
    it misses, objects that outlived one collection and died afterwards, goes when the run is over.
    """

    def __init__(self, clock: Callable[[], float], *, seconds_between: float = 20.0) -> None:
        self._clock = clock
        self._seconds_between = seconds_between
        self._last = clock()

    def reached(self) -> None:
        """Collect, if automatic collection is off and the last time is long enough ago."""
        now = self._clock()
        if not gc.isenabled() and now - self._last >= self._seconds_between:
            gc.collect(1)
            self._last = now


def import_engine(*, beside_window: bool = True) -> None:
    """Import torch and the engine; beside a window in the order that stalls it least.

    What the imports leave behind is frozen out of later collections; models, loaded after this, stay collectable.
    Frozen is for good. So a later run, which imports nothing, freezes nothing: in its place would be what the runs
    before it and the window have let go.
    """
    if not beside_window:
        importlib.import_module(_ENGINE)
        return
    is_here = _ENGINE in sys.modules
    if "torch" not in sys.modules:
        _preload_shared_libraries()
    importlib.import_module("torch._dynamo")
    importlib.import_module(_ENGINE)
    if not is_here:
        gc.freeze()


def _preload_shared_libraries() -> None:
    """Load torch's large libraries without holding the interpreter lock.

    `ctypes.CDLL(name)` holds the lock while the library loads (before Python 3.14); the system's own `dlopen`, called
    as a foreign function, does not: 15 ms of stall instead of 200 to 500.
    """
    spec = importlib.util.find_spec("torch")
    dlopen = getattr(ctypes.CDLL(None), "dlopen", None) if sys.platform == "linux" else None
    if spec is None or spec.origin is None or dlopen is None:
        return
    dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    folder = Path(spec.origin).parent / "lib"
    for name in ("libtorch_global_deps.so", "libc10.so", "libtorch_cpu.so"):
        if (folder / name).exists():
            dlopen(os.fsencode(folder / name), os.RTLD_GLOBAL | os.RTLD_NOW)
