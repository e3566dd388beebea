"""The TensorBoard log of a run: its metrics and its samples."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


class TensorBoardLog:
    """Writes to a run's tensorboard folder; the library is imported at the first write."""

    def __init__(self, folder: Path, *, first_step: int) -> None:
        self._folder = folder
        self._first_step = first_step
        self._writer: Any = None

    def scalar(self, tag: str, value: float, step: int) -> None:
        """Write one number."""
        self._open().add_scalar(tag, value, step)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write several numbers of a step, by tag, as one entry: each would cost as much as all of them together."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()])
        self._open().file_writer.add_summary(summary, step)

    def image(self, tag: str, image: Image.Image, step: int) -> None:
        """Write one image."""
        self._open().add_image(tag, np.asarray(image.convert("RGB")), step, dataformats="HWC")

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Any:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # Purge entries an interrupted run wrote after its backup; the step of the backup itself stays.
            self._writer = SummaryWriter(
                str(self._folder), purge_step=self._first_step + 1 if self._first_step else None
            )
        return self._writer
