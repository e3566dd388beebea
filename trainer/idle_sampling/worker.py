"""The process that samples for the window: it reads requests, keeps the model loaded, and ends when left alone."""

from __future__ import annotations

import queue
import traceback
from collections.abc import Callable, Iterable

import torch

from modules.system.errors import DarkroomError
from modules.system.redaction import redact
from trainer import commands
from trainer.idle_sampling.engine import SamplingEngine
from trainer.idle_sampling.request import SampleRequest, request_in
from trainer.job_events import JobEvent, JobFailed, JobStopped
from trainer.tools.job import Job

IDLE_SECONDS = 900.0
_MOST_WAITING = 50
_OUT_OF_MEMORY = "Use a smaller image, a smaller dtype of the model, or offload to the CPU on the General page."


class Inbox:
    """Lines from the window, read on a thread: requests wait in order, and a stop ends all that came before it."""

    def __init__(self) -> None:
        self._requests: queue.SimpleQueue[tuple[SampleRequest, commands.CommandDesk] | None] = queue.SimpleQueue()
        self._desks: list[commands.CommandDesk] = []

    def read(self, lines: Iterable[str]) -> None:
        """Read lines until there are no more: the window has ended, and so does the worker."""
        for line in lines:
            request = request_in(line)
            if request is not None:
                desk = commands.CommandDesk()
                self._desks = [*self._desks[-_MOST_WAITING:], desk]
                self._requests.put((request, desk))
            elif isinstance(commands.from_line(line), commands.Stop):
                self._stop()
        self._stop()
        self._requests.put(None)

    def next(self, idle_seconds: float) -> tuple[SampleRequest, commands.CommandDesk] | None:
        """Wait for a request and return it with its desk; None when there are no more, or none for a while."""
        try:
            return self._requests.get(timeout=idle_seconds)
        except queue.Empty:
            return None

    def _stop(self) -> None:
        for desk in self._desks:
            desk.put(commands.Stop())


def serve(inbox: Inbox, emit: Callable[[JobEvent], None], *, idle_seconds: float = IDLE_SECONDS) -> int:
    """Sample requests until there are no more, or none for `idle_seconds`; return how many there were.

    A failure ends a request, not the worker.
    """
    engine = SamplingEngine()
    num_requests = 0
    while (received := inbox.next(idle_seconds)) is not None:
        request, desk = received
        num_requests += 1
        emit(_answer(engine, request, Job(emit, desk)))
    engine.close()
    return num_requests


def _answer(engine: SamplingEngine, request: SampleRequest, job: Job) -> JobEvent:
    try:
        return engine.sample(request, job)
    except commands.StopRequested:
        return JobStopped("Stopped.", request.number)
    except DarkroomError as error:
        return JobFailed(redact(error.message), redact(error.advice), request=request.number)
    except torch.OutOfMemoryError:
        engine.close()
        return JobFailed("The device has too little memory for this image.", _OUT_OF_MEMORY, request=request.number)
    except Exception as error:  # noqa: BLE001 - the outer edge of a request; reported to the window
        details = redact(traceback.format_exc())
        return JobFailed(redact(f"{type(error).__name__}: {error}"), "", details, request.number)
