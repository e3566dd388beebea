"""Starting a run on its own thread while the window stays responsive.

The effect of each step here was measured against a Tk heartbeat: automatic garbage collection with torch loaded holds
the interpreter lock for up to 0.9 s, so it is off during a run and garbage is collected at quiet points; the large
shared libraries are loaded through ctypes, which releases the lock, before `import torch` needs them; and a short
switch interval keeps event draining within its budget. All process-wide settings are restored when the run ends.
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
from typing import TYPE_CHECKING, Literal, Protocol

from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.system import hardware
from modules.system.process_setup import SWITCH_INTERVAL_SECONDS, collection_off
from trainer.commands import Command, CommandDesk, Stop
from trainer.events import Event, PhaseChanged

if TYPE_CHECKING:
    from modules.data.datasets import Datasets

RequestKind = Literal["train", "resume", "cache", "fork", "fork_weights", "report", "follow"]

_ENGINE = "trainer.run.execute"
_IMPORTS = "trainer.run.imports"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A request: a new run of a config, a run resumed from a backup, only the caches, or a report on a run's images.

    A fork is a new run that continues from a backup of another run, or starts from its weights only. `resume_from` is
    a backup, a run's folder or a workspace. With `in_window` one CPU core is left to the window.
    `allowed_code` are hashes of the user's code files that may run in addition to the permanently approved ones.
    `datasets` are the images that the check of this config found, so that they need not be scanned again. With
    `replaces` the user agreed to replace what is at the destination of the result, which is otherwise kept.
    `on` is the name of another machine that trains a new run. To follow one there again, `resume_from` is its folder.
    """

    config: Config
    kind: RequestKind = "train"
    resume_from: Path | None = None
    in_window: bool = True
    allowed_code: frozenset[str] = frozenset()
    datasets: Datasets | None = None
    replaces: bool = False
    on: str = ""


class LaunchedRun(Protocol):
    """A running training, in a thread (`RunHandle`) or in a child process (`trainer.child.run.ChildRun`)."""

    @property
    def events(self) -> queue.SimpleQueue[Event]:
        """The events to drain."""
        ...

    @property
    def is_alive(self) -> bool:
        """Whether events may still arrive. Some may remain in the queue afterwards."""
        ...

    def send(self, command: Command) -> None:
        """Send a command to the run; never blocks."""
        ...

    def leave(self) -> None:
        """Prepare the run for the end of this process: it stops with a backup, or continues in a process of its own."""
        ...


@dataclass(frozen=True, slots=True)
class RunHandle:
    """A running training: its events to drain, its desk for commands, its thread."""

    thread: threading.Thread
    events: queue.SimpleQueue[Event]
    desk: CommandDesk = field(default_factory=CommandDesk)

    def send(self, command: Command) -> None:
        """Send a command to the run; never blocks."""
        self.desk.put(command)

    @property
    def is_alive(self) -> bool:
        """Whether the thread is still running. Events may remain in the queue after it ended."""
        return self.thread.is_alive()

    def leave(self) -> None:
        """Stop the run and wait until it has ended, with its backup.

        Python unwinds the threads that still run when it ends, and torch's C++ code aborts the process then.
        """
        self.desk.put(Stop())
        self.thread.join()


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
        import_for(request.config)
        # By name: the window must not import the engine, and the import contracts follow imports inside functions.
        importlib.import_module(_ENGINE).execute_guarded(request, emit=emit, desk=desk)


@contextmanager
def smooth_interpreter() -> Iterator[None]:
    """Keep the interpreter lock from being held for long during a run; restore the settings afterwards."""
    interval, was_collecting = sys.getswitchinterval(), gc.isenabled()
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        if was_collecting:
            gc.enable()


_SECONDS_BETWEEN_COLLECTIONS = 20.0


class QuietPoints:
    """Collects garbage explicitly during a run next to a window: between steps, and not too often.

    Young generations only, because steps leave young garbage: a full collection also walks the model and takes longer.
    Objects that survive one collection and die later are collected when the run is over.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = clock()

    def collect_if_due(self) -> None:
        """Collect, if automatic collection is off and the last time is long enough ago."""
        now = self._clock()
        if not gc.isenabled() and now - self._last >= _SECONDS_BETWEEN_COLLECTIONS:
            gc.collect(1)
            self._last = now


def import_engine(*, in_window: bool = True) -> None:
    """Import torch, the engine and the libraries of every run; next to a window in the order that stalls it least.

    Objects created by the imports are frozen out of later collections; models are loaded after this and stay
    collectable. Freezing is permanent. A later run imports nothing, so it freezes nothing: it would freeze the garbage
    of earlier runs and of the window instead.
    """
    if _ENGINE in sys.modules:
        return
    with collection_off():
        if in_window and "torch" not in sys.modules:
            _preload_shared_libraries()
        usual_family = next(iter(FAMILIES.values()))
        libraries = [part.model_class.partition(":")[0] for part in usual_family.parts]
        for name in ("torch._dynamo", *libraries, "peft", _ENGINE):
            importlib.import_module(name)
        gc.freeze()


def import_for(config: Config) -> None:
    """Import the modules that a run of a config needs beyond the engine, and freeze their objects like the engine's.

    Otherwise the run would import it later, and each of its collections would walk half a million objects: 150 to 280
    ms without a window. A later run like an earlier one imports nothing new, and freezes nothing.
    """
    if importlib.import_module(_IMPORTS).import_for(config):
        gc.freeze()


def _preload_shared_libraries() -> None:
    """Load torch's large libraries without holding the interpreter lock.

    `ctypes.CDLL(name)` holds the lock while the library loads (before Python 3.14); the system's `dlopen`, called as
    a foreign function, does not: it stalls the window for 15 ms instead of 200 to 500 ms.
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


def num_processes(config: Config) -> int:
    """Return how many processes a config requires: one for each GPU that it names, or for each of the machine."""
    if not config.multi_gpu.enabled:
        return 1
    return max(1, len(_named_gpus(config)) or len(hardware.here().capabilities or ()))


def first_device(config: Config) -> str:
    """Return the training device of a run's first process: the first GPU of those that a multi-GPU run names."""
    named, device = _named_gpus(config), config.general.train_device
    may_be_cuda = hardware.here().kind_of(device) in ("cuda", "")
    if not (config.multi_gpu.enabled and may_be_cuda and named and named[0].isdecimal()):
        return device
    return f"cuda:{int(named[0])}"


def _named_gpus(config: Config) -> list[str]:
    return [part.strip() for part in config.multi_gpu.device_indexes.split(",") if part.strip()]


def needs_own_process(config: Config) -> bool:
    """Return whether a run must not share the process of the window, or of the runs before it.

    A deterministic run on an NVIDIA GPU needs an environment variable that torch reads once in a process, at the first
    matrix product on a GPU; an earlier run may have computed without it.
    """
    general = config.general
    return general.deterministic and hardware.here().kind_of(general.train_device) == "cuda"


def module_arguments(config: Config) -> list[str]:
    """Return the arguments of Python, up to the verb, that start as many processes as a config requires."""
    count, trainer = num_processes(config), ["-m", "trainer"]
    if count == 1:
        return trainer
    return ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count), *trainer]
