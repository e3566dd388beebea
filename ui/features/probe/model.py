"""The probe in the window: its child process, its findings, and applying them to the form."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from modules.config.codec import export_file
from modules.settings.edit import set_path
from modules.settings.field import Section
from modules.system.errors import DarkroomError
from trainer.child.process import Spawn, spawn_trainer
from trainer.jobs.config import new_results_folder
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import JobSpec, validate_settings
from trainer.probe.curve import RatePoint
from trainer.probe.plot import Plot, batch_plot, rate_plot
from ui.forms.model import FormModel
from ui.loop.background import Background
from ui.loop.jobs import JobRunner
from ui.loop.signal import Signal

BATCH, RATE = "batch", "rate"


@dataclass(frozen=True, slots=True)
class ProbeFindings:
    """The results of a probe: text and plot of each search, and the value to apply, if any."""

    summaries: tuple[str, ...] = ()
    plots: Mapping[str, Plot] = field(default_factory=dict)
    batch: int | None = None
    rate: float | None = None


def read_findings(folder: Path) -> ProbeFindings:
    """Return the results that a probe wrote into a folder. Raises OSError and ValueError for an unreadable file."""
    data: dict[str, dict[str, Any]] = json.loads((folder / "points.json").read_text(encoding="utf-8"))
    of_batch, of_rate = data.get("batch", {}), data.get("learning_rate", {})
    plots = {}
    if of_rate.get("points"):
        rates = [RatePoint(**point) for point in of_rate["points"]]
        plots[RATE] = rate_plot(
            [p.rate for p in rates], [p.change for p in rates], of_rate["smoothed"], of_rate["suggested"]
        )
    if points := of_batch.get("points"):
        speeds = [p["images_per_second"] for p in points]
        plots[BATCH] = batch_plot([p["batch_size"] for p in points], speeds, of_batch["fastest"])
    return ProbeFindings(
        tuple(str(part["words"]) for part in (of_rate, of_batch) if part),
        plots,
        of_batch.get("fastest"),
        of_rate.get("suggested"),
    )


def batches_of(batch: int, effective: int) -> tuple[int, int]:
    """Return the micro-batch and the accumulation steps: the largest divisor of the effective batch up to `batch`."""
    size = next(n for n in range(min(batch, effective), 0, -1) if effective % n == 0)
    return size, effective // size


class Probing:
    """One probe at a time; `changed` is emitted when its job or its findings change."""

    def __init__(
        self,
        form: FormModel,
        background: Background,
        *,
        may_start: Callable[[], bool],
        spawn: Spawn = spawn_trainer,
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        self.runner = JobRunner(spawn=spawn)
        self.findings = ProbeFindings()
        self.folder: Path | None = None
        self.problem = ""
        self.changed: Signal[[]] = Signal()
        self._form, self._background, self._may_start, self._now = form, background, may_start, now
        self._is_read = True
        self.runner.changed.subscribe(self._follow)

    @property
    def effective_batch(self) -> int:
        """The batch size times the accumulation steps of the form."""
        training = self._form.config.training
        return training.batch_size * training.accumulation_steps

    @property
    def batches(self) -> tuple[int, int]:
        """The measured micro-batch with its accumulation steps."""
        return batches_of(self.findings.batch or 1, self.effective_batch)

    def start(self, what: set[str], steps_text: str) -> None:
        """Write the config into a new folder of the workspace, and measure it in a child process."""
        probe = JOBS["probe"]
        values = {"what": "both" if len(what) > 1 else next(iter(what), ""), "steps": steps_text.strip()}
        try:
            if not what:
                raise DarkroomError("Choose what to measure.")
            settings = validate_settings(probe.settings, values)
            if not self._may_start():
                raise DarkroomError(
                    "A run is training. Wait until it has ended, or stop it: both need the whole device."
                )
            self._launch(probe, settings)
        except DarkroomError as error:
            self.problem = str(error)
            self.changed()

    def take_rate(self) -> str:
        """Set the suggested learning rate; return what happened as a sentence."""
        rate = self.findings.rate
        if rate is None:
            return ""
        self._form.edit("training.learning_rate", float(f"{rate:.2g}"))
        return f"The learning rate is {rate:.2g}. Ctrl+Z undoes it."

    def take_batch(self) -> str:
        """Set the measured micro-batch, with the accumulation steps that keep the effective batch, as one step."""
        if self.findings.batch is None:
            return ""
        size, steps = self.batches
        config, _ = set_path(self._form.config, "training.batch_size", size)
        config, _ = set_path(config, "training.accumulation_steps", steps)
        self._form.replace(config)
        return f"The batch size is {size}, with {steps} accumulation steps. Ctrl+Z undoes it."

    def _launch(self, probe: JobSpec, settings: Section) -> None:
        self.folder = new_results_folder(self._form.config, "probes", self._now())
        file = self.folder / "config.json"
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            export_file(self._form.config, file)
        except OSError as error:
            raise DarkroomError(f"{file} cannot be written: {error.strerror or error}.") from error
        self.findings, self.problem, self._is_read = ProbeFindings(), "", False
        self.runner.start(probe, settings.model_copy(update={"config": str(file), "out": str(self.folder)}))

    def _follow(self) -> None:
        if self.runner.state.stage == "finished" and not self._is_read and self.folder is not None:
            self._is_read, folder = True, self.folder
            self._background.run(lambda: read_findings(folder), self._keep)
        self.changed()

    def _keep(self, findings: ProbeFindings) -> None:
        self.findings = findings
        self.changed()
