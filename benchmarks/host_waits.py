"""How often a training step makes the host wait for its device, and where.

A step should read its results once: while the host waits it enqueues nothing, so the device runs dry afterwards. On a
GPU torch itself reports each wait (`torch.cuda.set_sync_debug_mode`). A CPU never waits, so there the guard of logical
devices stands in: the training device is "cpu:1", and everything is counted that would wait if that were a GPU. It
would wait for reading a value of a tensor (`item`, `tolist`, `cpu`, a condition), for an operation whose result has a
size that depends on values (`nonzero`, a boolean index), and for a copy between the devices, unless it comes from
pinned memory. Reading the outcome of a step only counts if the device has nothing else to do by then. A GPU's stream
reports that; on a CPU it is assumed if few operations were computed since.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode

from benchmarks.loop_speed import run_setup
from modules.config.schema import Config
from modules.memory.guard import DeviceGuard, tensors_in
from modules.system import devices
from modules.system.devices import Device
from modules.system.paths import PROGRAM_ROOT
from trainer.run.training_run import prepare
from trainer.step import outcome
from trainer.step.loop import train_epoch
from trainer.step.precision import process_settings

_ATEN = torch.ops.aten
READS = frozenset(
    {
        _ATEN._local_scalar_dense, _ATEN.is_nonzero, _ATEN.equal, _ATEN.nonzero, _ATEN.masked_select, _ATEN._unique2,
        _ATEN.repeat_interleave, _ATEN._linalg_check_errors,
    }
)  # fmt: skip
"""The operations that read values, or whose results have a size that depends on values."""
_READING = (torch.Tensor.tolist, torch.Tensor.cpu, torch.Tensor.numpy)
_MAKING = (torch.tensor, torch.as_tensor)
_INDEXED = frozenset({_ATEN.index, _ATEN.index_put, _ATEN.index_put_, _ATEN._index_put_impl_})
_OWN_FOLDERS = ("modules", "trainer")
_NOT_NAMED = (Path(__file__).name, "guard.py", "devices.py", "outcome.py")
_FEW_OPERATIONS = 200  # of an update: a forward pass has more

Place = str
"""The operation that waits and the program's line that calls it: "item in trainer/step/stepper.py:130"."""


class HostWaits(DeviceGuard):
    """Counts the waits of this thread for a logical device while `is_counting`, by their places."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.counts: Counter[Place] = Counter()
        self.is_counting = False
        self.num_operations = 0
        self._device = device
        self._pinned: dict[int, StorageWeakRef] = {}
        self._calls = _Calls(self)

    def __enter__(self) -> Self:
        super().__enter__()
        self._calls.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls.__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        super().__exit__(kind, error, trace)

    def note_pinned(self, tensor: torch.Tensor) -> None:
        """Remember that copying a tensor does not wait."""
        storage = tensor.untyped_storage()
        self._pinned[storage._cdata] = StorageWeakRef(storage)

    def retag(self, tensor: torch.Tensor, device: Device) -> torch.Tensor:
        """Count a copy between the devices, unless it is from pinned memory."""
        is_here, goes_here = self.is_here(tensor), device == self._device
        if is_here and not goes_here:
            self.add("copy from the device")
        elif goes_here and not is_here and not self._is_pinned(tensor):
            self.add("copy from memory that is not pinned")
        return super().retag(tensor, device)

    def is_here(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the device."""
        return self.tag_of(tensor) == self._device.name

    def mark(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor that is on the device from now on."""
        self._set(tensor, self._device.name)
        return tensor

    def add(self, what: str) -> None:
        """Count a wait."""
        if self.is_counting:
            self.counts[f"{what} in {place_of_wait()}"] += 1

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        reference = self._pinned.get(tensor.untyped_storage()._cdata)
        return reference is not None and not reference.expired()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        operation = func.overloadpacket
        self.num_operations += 1
        if operation in READS and any(map(self.is_here, tensors_in(args))):
            self.add(operation.__name__)
        elif operation in _INDEXED and self.is_here(args[0]):
            indices = list(tensors_in(args[1]))
            if any(i.dtype in (torch.bool, torch.uint8) for i in indices):
                self.add("boolean index")
            elif not all(map(self.is_here, indices)):
                self.add("copy of an index")
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _common_tag(self, func: Any, tensors: Iterable[torch.Tensor]) -> str | None:
        """Return the tag that some tensors share. A result of scalars on the device is on the device, too."""
        known = list(tensors)
        tag = super()._common_tag(func, known)
        return self._device.name if tag is None and any(map(self.is_here, known)) else tag


class _Calls(TorchFunctionMode):
    """Counts calls that reach no operation on a CPU, but would wait for a GPU."""

    def __init__(self, waits: HostWaits) -> None:
        super().__init__()
        self._waits = waits

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs, waits = kwargs or {}, self._waits
        caller = sys._getframe(1).f_code
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        names_device = any(isinstance(a, torch.device) for a in (*args, *kwargs.values()))
        if caller in (devices.move.__code__, devices.LateRead.wait.__code__):
            return func(*args, **kwargs)  # reported elsewhere
        if func in _READING and first is not None and waits.is_here(first):
            waits.add(func.__name__)
        result = func(*args, **kwargs)
        if func is torch.Tensor.new_tensor and first is not None and waits.is_here(first):
            waits.add("copy of values")
            return waits.mark(result)
        if names_device and isinstance(result, torch.Tensor) and not waits.is_here(result):
            if caller is not devices.tensor_on.__code__ and (first is not None or func in _MAKING):
                waits.add("copy to a device")
            # The program names the host's own device with a string, and a tensor's device with an object.
            result = waits.mark(result.clone() if result is first else result)
        return result


def waits_per_step(config: Config, *, warmup_epochs: int, epochs: int, num_threads: int = 1) -> dict[Place, float]:
    """Train a config's epochs and return the host's waits by their place, as means of the steps after the warm-up.

    On a CPU the training device is the logical "cpu:1". The first steps of a run read more: each weight is watched
    until it has been updated (`trainer/step/watchdog.py`).
    """
    setup = run_setup(_with_devices(config), num_threads)
    device = setup.machine.train_device
    guard = None if device.type == "cuda" else HostWaits(device)
    waits: Counter[Place] = guard.counts if guard is not None else Counter()
    setup = replace(setup, machine=replace(setup.machine, guard=guard))
    settings = process_settings(num_threads=num_threads, precision=config.training.precision, deterministic=False)
    with settings, guard or nullcontext():
        run = prepare(setup)
        try:
            for _ in range(warmup_epochs):
                train_epoch(run.training)
            first = run.training.counters.step
            with _counting(guard) if guard is not None else waits_reported_by_torch(waits):
                for _ in range(epochs):
                    train_epoch(run.training)
            num_steps = run.training.counters.step - first
        finally:
            run.close()
    return {place: times / num_steps for place, times in waits.most_common()}


def _with_devices(config: Config) -> Config:
    general = config.general
    if Device(general.train_device).type != "cuda":
        general = general.model_copy(update={"train_device": "cpu:1", "temp_device": "cpu"})
    return config.model_copy(update={"general": general})


@contextmanager
def _count_reads(guard: HostWaits | None, waits: Counter[Place]) -> Iterator[None]:
    """Count the outcomes of steps for which the host waits while the device has nothing else to do."""

    is_counting = True

    class CountedRead(devices.LateRead):
        def __init__(self, values: torch.Tensor) -> None:
            super().__init__(values)
            self._device = values.device
            self._first_operation = 0 if guard is None else guard.num_operations

        @property
        def is_ready(self) -> bool:
            return self._read is not None

        def wait(self) -> list[float]:
            is_first, values = self._read is None, super().wait()
            if is_first and is_counting and self._is_dry():
                waits[f"read in {place_of_wait()}"] += 1
            return values

        def _is_dry(self) -> bool:
            if guard is None:
                return bool(torch.cuda.current_stream(self._device).query())
            return guard.num_operations - self._first_operation < _FEW_OPERATIONS

    try:
        with mock.patch.object(outcome, "LateRead", CountedRead):
            yield
    finally:
        is_counting = False  # the newest outcome is read later


@contextmanager
def _counting(guard: HostWaits) -> Iterator[None]:
    guard.is_counting = True
    try:
        with _count_reads(guard, guard.counts):
            yield
    finally:
        guard.is_counting = False


@contextmanager
def waits_reported_by_torch(waits: Counter[Place]) -> Iterator[None]:
    """Count the waits for a GPU that torch reports, by their places."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as reported, _count_reads(None, waits):
            warnings.simplefilter("always")
            yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
    for one in reported:
        if "synchronizing" in str(one.message):
            waits[f"wait in {_relative(one.filename)}:{one.lineno}"] += 1


def place_of_wait() -> str:
    """Return the innermost line of the program's own code on the stack, apart from the code that counts."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        is_own = path.is_relative_to(PROGRAM_ROOT) and path.relative_to(PROGRAM_ROOT).parts[0] in _OWN_FOLDERS
        if is_own and path.name not in _NOT_NAMED:
            return f"{_relative(frame.f_code.co_filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return "another package"


def _relative(name: str) -> str:
    path = Path(name)
    return path.relative_to(PROGRAM_ROOT).as_posix() if path.is_relative_to(PROGRAM_ROOT) else path.name
