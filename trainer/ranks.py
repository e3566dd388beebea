"""The communication between the processes of a run; a single process has none.

Gradients are summed in flat buckets (`trainer/step/gradient_sums.py`), with torch.distributed's own collectives, and
not by DistributedDataParallel: that replaces a module's forward, while only the family calls the forward of a part.
(With an adapter the trained layers are deep inside a part, and a step may call a part several times.) Everything else
goes over a second group on the CPU, which may wait for hours: the others wait there while the main process samples.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch

from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.network import network_of_machines
from modules.system.ranks import ONLY_RANK, Rank, meeting_place

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

T = TypeVar("T")

_MEETING = timedelta(minutes=10)
_WORK = timedelta(minutes=30)  # between the sums of a step, where all processes compute
_WAITING = timedelta(days=7)  # for the work of the main process alone
_SECONDS_BETWEEN_LOOKS = 0.5
_STOPPING = "stopping"
_BACKENDS = ("gloo", "nccl")


class Ranks(Protocol):
    """The processes of a run, seen from one of them. All of them call the same methods in the same order."""

    @property
    def rank(self) -> Rank:
        """This process."""
        ...

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sums of numbers over all processes, each as exact as a float64."""
        ...

    def start_sums(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Start what `sums` does; return a function that waits for the sums and returns them."""
        ...

    def sum_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors by their sums over all processes; the same bits in each of them."""
        ...

    def start_sum(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Start to replace a tensor by its sum over all processes; return a function that waits for it."""
        ...

    def copy_from_main(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace the values of tensors by the main process's."""
        ...

    def from_main(self, value: T) -> T:
        """Return the value of the main process."""
        ...

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in order."""
        ...

    def announce_stop(self) -> None:
        """Let the other processes know at once that the run is to stop."""
        ...

    def is_stop_announced(self, *, at_once: bool = False) -> bool:
        """Return whether a process has announced a stop; looks at most twice a second, unless `at_once`."""
        ...

    def leave_message(self, message: str) -> None:
        """Leave the reason why this process fails to the others, whose next call here will fail."""
        ...

    def messages_of_others(self) -> str:
        """Return why other processes have failed; empty if they had no time to leave a message."""
        ...

    def reason_of(self, error: BaseException) -> BaseException:
        """Return the error, or a LostProcessError if a collective of torch failed because a process was lost."""
        ...

    def close(self) -> None:
        """Leave the others."""
        ...


class OneProcess:
    """A run of a single process."""

    rank = ONLY_RANK

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the numbers."""
        return list(values)

    def start_sums(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Return a function that returns the numbers."""
        return lambda: self.sums(values)

    def sum_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Change nothing."""

    def start_sum(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Change nothing."""
        return lambda: None

    def copy_from_main(self, tensors: Sequence[torch.Tensor]) -> None:
        """Change nothing."""

    def from_main(self, value: T) -> T:
        """Return the value."""
        return value

    def gather(self, value: T) -> list[T]:
        """Return the value alone."""
        return [value]

    def announce_stop(self) -> None:
        """Do nothing: there is no other process."""

    def is_stop_announced(self, *, at_once: bool = False) -> bool:
        """Return False: there is no other process."""
        return False

    def leave_message(self, message: str) -> None:
        """Do nothing: there is no other process."""

    def messages_of_others(self) -> str:
        """Return nothing: there is no other process."""
        return ""

    def reason_of(self, error: BaseException) -> BaseException:
        """Return the error."""
        return error

    def close(self) -> None:
        """Do nothing: there is no other process."""


ALONE = OneProcess()


class SeveralProcesses:
    """A process among several. Its methods raise DarkroomError once another one has ended."""

    def __init__(self, rank: Rank, control: ProcessGroup, store: Store) -> None:
        self.rank = rank
        self._control = control
        self._store = store
        self._last_look = -float("inf")
        self._is_stopping = False

    def sums(self, values: Sequence[float]) -> list[float]:
        """Return the sums of numbers over all processes."""
        return self.start_sums(values)()

    def start_sums(self, values: Sequence[float]) -> Callable[[], list[float]]:
        """Start to sum numbers over all processes; return a function that waits for the sums and returns them."""
        from torch import distributed

        numbers = torch.tensor(values, dtype=torch.float64)
        with self._together():
            work = distributed.all_reduce(numbers, group=self._control, async_op=True)

        def wait() -> list[float]:
            with self._together():
                work.wait()
            return [float(n) for n in numbers.tolist()]

        return wait

    def sum_tensors(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors by their sums over all processes."""
        for tensor in tensors:
            self.start_sum(tensor)()

    def start_sum(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Start to replace a tensor by its sum over all processes; return a function that waits for it."""
        from torch import distributed

        with self._together():
            work = distributed.all_reduce(tensor, async_op=True)

        def wait() -> None:
            with self._together():
                work.wait()

        return wait

    def copy_from_main(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace tensors by the main process's."""
        from torch import distributed

        with self._together(), torch.no_grad():
            for tensor in tensors:
                given = tensor.detach().contiguous()
                distributed.broadcast(given, src=0)
                tensor.copy_(given)

    def from_main(self, value: T) -> T:
        """Return the value of the main process."""
        from torch import distributed

        box = [value]
        with self._together():
            distributed.broadcast_object_list(box, src=0, group=self._control)
        return box[0]

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, in order."""
        from torch import distributed

        values: list[Any] = [None] * self.rank.world_size
        with self._together():
            distributed.all_gather_object(values, value, group=self._control)
        return values

    def announce_stop(self) -> None:
        """Let the other processes know at once that the run is to stop."""
        with contextlib.suppress(RuntimeError):  # no other process is left
            self._store.set(_STOPPING, "yes")

    def is_stop_announced(self, *, at_once: bool = False) -> bool:
        """Return whether a process has announced a stop; looks at most twice a second, unless `at_once`."""
        now = time.monotonic()
        if not self._is_stopping and (at_once or now - self._last_look >= _SECONDS_BETWEEN_LOOKS):
            self._last_look = now
            with contextlib.suppress(RuntimeError):
                self._is_stopping = self._store.check([_STOPPING])
        return self._is_stopping

    def leave_message(self, message: str) -> None:
        """Leave the reason why this process fails to the others."""
        with contextlib.suppress(RuntimeError):
            self._store.set(_message_key(self.rank.index), f"The {self.rank} failed: {message}")

    def close(self) -> None:
        """Leave the others."""
        from torch import distributed

        with contextlib.suppress(RuntimeError):  # after a failure there may be nothing left to leave
            distributed.destroy_process_group()
        del self._control, self._store  # which would keep the connections open, and the others waiting

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """Raise DarkroomError with the message of another process if it has failed."""
        try:
            yield
        except RuntimeError as error:
            raise self._lost_process() from error

    def reason_of(self, error: BaseException) -> BaseException:
        """Return the error, or LostProcessError in place of one in one of torch's collectives after a lost process."""
        inner = error.__cause__ or error
        if isinstance(error, LostProcessError) or not isinstance(inner, RuntimeError):
            return error
        is_of_collective = any(name in str(inner).lower() for name in _BACKENDS)
        return self._lost_process() if is_of_collective else error

    def _lost_process(self) -> LostProcessError:
        self._abort()
        return lost_process_error(self)

    def _abort(self) -> None:
        """Abort the sums on their way on a GPU: NCCL waits for the lost process, and all that reads the GPU with it."""
        from torch import distributed

        if (world := distributed.group.WORLD) is None:
            return
        with contextlib.suppress(RuntimeError):  # there may be no backend of GPUs, or nothing left of it
            backend = world._get_backend(torch.device("cuda"))
            if backend.name() == "nccl":
                backend.abort()

    def messages_of_others(self) -> str:
        """Return why other processes have failed; empty if they had no time to leave a message."""
        others = [_message_key(index) for index in range(self.rank.world_size) if index != self.rank.index]
        try:
            return " ".join(self._store.get(key).decode() for key in others if self._store.check([key]))
        except RuntimeError:
            return ""


def lost_process_error(ranks: Ranks) -> LostProcessError:
    """Return the error of a run after another of its processes has failed, with that process's message."""
    return LostProcessError(
        ranks.messages_of_others() or "Another process of this run has ended, and the run with it.",
        advice="Resume the run from its newest backup; the number of processes may differ.",
    )


class LostProcessError(DarkroomError):
    """Another process of the run has ended."""


def connect(rank: Rank, *, device_type: str) -> Ranks:
    """Meet the other processes of a run and return them. Raises DarkroomError if they do not come."""
    if rank.is_alone:
        return ALONE
    from torch import distributed
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if device_type == "cuda" and not distributed.is_nccl_available():
        raise DarkroomError(
            "Several GPUs need NCCL, which this build of torch does not have: on Windows it is not available.",
            advice="Train on one GPU, or on Linux.",
        )
    host, port = meeting_place()
    try:
        # torchrun has a store, which rendezvous finds, and which outlives each of the processes.
        place = "env://" if "MASTER_PORT" in os.environ else f"tcp://{host}:{port}"
        meeting = rendezvous(f"{place}?rank={rank.index}&world_size={rank.world_size}", timeout=_MEETING)
        # It also outlives a restart of all of them, and still has the addresses of those that ended.
        store = PrefixStore(f"darkroom/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", next(meeting)[0])
        with network_of_machines(rank, store, host):
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo",
                store=store,
                rank=rank.index,
                world_size=rank.world_size,
                timeout=_WORK,
            )
            control = distributed.new_group(backend="gloo", timeout=_WAITING)
    except (RuntimeError, ValueError, OSError) as error:
        if distributed.is_initialized():
            distributed.destroy_process_group()
        raise DarkroomError(
            f"The {rank} could not meet the others at {host}:{port}: {plain_reason(error)}.",
            advice="Start all processes with torchrun or srun, and check that no firewall separates the machines.",
        ) from error
    assert control is not None, "every process belongs to the group of all"
    return SeveralProcesses(rank, control, store)


def _message_key(index: int) -> str:
    return f"message/{index}"
