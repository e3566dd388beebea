"""The TensorBoard log of a run: its metrics and its samples."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from modules.system.atomic import make_folder
from trainer.callbacks.side_output import SideOutput
from trainer.events import Event

_SECONDS_BETWEEN_FLUSHES = 120.0


class TensorBoardLog:
    """Writes to a run's tensorboard folder; the library is imported at the first write.

    The records are TensorBoard's own, but its writer is not used: it writes on a thread, which prints a traceback and
    raises in a later call where the disk is full. After a failure, which is a warning, nothing more is written.
    """

    def __init__(self, folder: Path, *, first_step: int, emit: Callable[[Event], None]) -> None:
        self._folder = folder
        self._first_step = first_step
        self._output = SideOutput("The TensorBoard log", folder, emit)
        self._records: Any = None
        self._flushed_at = 0.0

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write one number."""
        from torch.utils.tensorboard.summary import scalar

        self._write(scalar(tag, value), step)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write several numbers of a step, by tag, as one entry, which takes no longer than a single number."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        self._write(Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]), step)

    def image(self, tag: str, image: Image.Image, step: int) -> None:
        """Write one image."""
        from torch.utils.tensorboard.summary import image as summary_of

        self._write(summary_of(tag, np.asarray(image.convert("RGB")), dataformats="HWC"), step)

    def close(self) -> None:
        """Flush and close."""
        if self._records is not None:
            with self._output.warn_on_failure():
                self._records.close()
            self._records = None

    def _write(self, summary: Any, step: int) -> None:
        if self._output.is_failing:
            return
        with self._output.warn_on_failure():
            records = self._open_records()
            _add(records, step=step, summary=summary)
            if time.monotonic() - self._flushed_at >= _SECONDS_BETWEEN_FLUSHES:
                records.flush()
                self._flushed_at = time.monotonic()

    def _open_records(self) -> Any:
        if self._records is None:
            from tensorboard.compat.proto.event_pb2 import SessionLog
            from tensorboard.summary.writer.record_writer import RecordWriter

            make_folder(self._folder)
            name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"  # read in this order
            self._records = RecordWriter((self._folder / name).open("xb"))
            _add(self._records, file_version="brain.Event:2")
            if self._first_step:  # purge entries an interrupted run wrote after its backup; the backup's own step stays
                first = self._first_step + 1
                _add(self._records, step=first, session_log=SessionLog(status=SessionLog.START))
        return self._records


def _add(records: Any, **content: Any) -> None:
    from tensorboard.compat.proto.event_pb2 import Event as Record

    records.write(Record(wall_time=time.time(), **content).SerializeToString())
