"""Writing and reporting samples, of prompts and of a VAE."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from modules.config.sections.evaluation import Sampling
from modules.system.atomic import atomic_file
from modules.system.paths import safe_name
from trainer.callbacks.side_output import DryRunComplete, SideOutput, discarded_write
from trainer.callbacks.tensorboard_log import TensorBoardLog
from trainer.events import Event, SampleReady


@dataclass(frozen=True, eq=False)
class SampleFiles:
    """Writes samples as `<folder>/01 <name>/step-00000010.png`, and with `-no-ema` those with the plain weights.

    One that cannot be written is a warning.
    """

    folder: Path
    settings: Sampling
    emit: Callable[[Event], None]
    log: TensorBoardLog | None
    output: SideOutput

    def path(self, step: int, index: int, name: str, *, is_without_ema: bool = False) -> Path:
        """Return the path of a sample; `index` is its place among the samples of a step, `name` its subject."""
        folder = self.folder / f"{index + 1:02d} {safe_name(name, max_chars=40)}"
        return folder / f"step-{step:08d}{'-no-ema' if is_without_ema else ''}.{self.settings.image_format}"

    def keep(self, image: Image.Image, step: int, index: int, name: str, *, is_without_ema: bool) -> None:
        """Write a sample, log it and report it."""
        path = self.path(step, index, name, is_without_ema=is_without_ema)
        is_written = False
        with self.output.warn_on_failure():
            with atomic_file(path) as temporary:
                _write(image, temporary, path.suffix)
            is_written = True
        if self.log is not None and self.settings.to_tensorboard:
            self.log.image(f"samples{' without EMA' if is_without_ema else ''}/{path.parent.name}", image, step)
        if is_written:
            self.emit(SampleReady(step, index, name, str(path), is_without_ema))

    def try_out(self, image: Image.Image, step: int, index: int, name: str) -> None:
        """Start to write a sample and discard it, for a dry run. Raises DryRunComplete, and OSError."""
        path = self.path(step, index, name)
        with discarded_write(path.parent), atomic_file(path) as temporary:
            _write(image, temporary, path.suffix)
            raise DryRunComplete


def _write(image: Image.Image, path: Path, suffix: str) -> None:
    image.save(path, format="PNG" if suffix == ".png" else "JPEG", quality=95)
