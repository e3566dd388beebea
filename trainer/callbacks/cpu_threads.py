"""Fewer CPU threads while other programs need the cores, and more again when they are free."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

import psutil
import torch

from modules.system.problem import count
from trainer.events import Event, WarningRaised
from trainer.step.callback import DryRunCheck, DryRunState, StepView
from trainer.step.thread_pace import ThreadPace

logger = logging.getLogger("darkroom.run")


class CpuThreads:
    """Keeps the number of threads of a run on the CPU at what is fastest at the moment.

    Another number of threads changes the last bits of a step, so a deterministic run, or one whose number is set, has
    no such callback. The first change is reported, the others are only in the log.
    """

    def __init__(
        self,
        num_threads: int,
        emit: Callable[[Event], None],
        *,
        available_cores: Callable[[], float] | None = None,
        use: Callable[[int], None] = torch.set_num_threads,
    ) -> None:
        """`available_cores()` returns how many cores other programs left since its last call."""
        self._pace = ThreadPace(num_threads)
        self._kept = num_threads
        self._emit = emit
        self._available_cores = available_cores or AvailableCores()
        self._use = use
        self._is_reported = False

    def after_step(self, view: StepView) -> None:
        """Decide on the threads of the next step."""
        former = self._pace.num_threads
        now = self._pace.after_step(view.seconds / max(view.outcome.num_images, 1), self._available_cores())
        if now != former:
            self._use(now)
        if not self._pace.is_trying and now != self._kept:
            self._kept = now
            self._report(now)

    def dry_run_checks(self, state: DryRunState) -> tuple[DryRunCheck, ...]:
        """Return no checks: there is nothing that could fail."""
        return ()

    def _report(self, num_threads: int) -> None:
        threads = count(num_threads, "CPU thread")
        logger.info("The run continues with %s.", threads)
        if self._is_reported:
            return
        self._is_reported = True
        self._emit(
            WarningRaised(
                f"Other programs use the CPU, and a step is faster with {threads}. The run continues with {threads}, "
                "and with more again when the CPU is free.",
                "Set CPU threads to a number, or switch on deterministic mode, to keep it the same.",
            )
        )


class AvailableCores:
    """Measures how many of its cores other programs leave to this process."""

    def __init__(self) -> None:
        self._former = self._read()

    def __call__(self) -> float:
        """Return the cores that were idle or used by this process since the last call, on average."""
        former, self._former = self._former, self._read()
        seconds, available = (now - before for now, before in zip(self._former, former, strict=True))
        return available / max(seconds, 1e-9)

    @staticmethod
    def _read() -> tuple[float, float]:
        """Return the time, and the idle time of the usable cores plus the CPU time of this process, in seconds."""
        usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        idle = 0.0
        for number, core in enumerate(psutil.cpu_times(percpu=True)):
            if usable is None or number in usable:
                idle += core.idle + getattr(core, "iowait", 0.0)
        return time.monotonic(), idle + time.process_time()
