"""The events a run reports: frozen records of JSON-safe values, no tensors, images by path.

The same records go over the queue to the window, as lines (`event_lines`) into `events.jsonl`, and over a pipe from a
child process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from modules.objectives.metrics import METRICS
from modules.system.problem import count, join_words
from trainer.machine_events import (
    BlocksCompiled,
    ImagesReported,
    MemoryMeasured,
    PaceMeasured,
    ProfileWritten,
    SettingChosen,
)
from trainer.rollout_events import ChoicesWanted, RolloutSampled
from trainer.run_status import RunStatus

Phase = Literal[
    "starting",
    "sending",
    "loading",
    "estimating",
    "scanning",
    "caching",
    "dry_run",
    "training",
    "validating",
    "sampling",
    "choosing",
    "saving",
    "backing_up",
    "paused",
    "stopping",
]
Outcome = Literal["finished", "stopped", "stopped_early", "nothing_left", "already_complete", "cached", "reported"]


@dataclass(frozen=True, slots=True)
class RunStarted:
    """The run is set up; the numbers are final."""

    run_dir: str
    family: str
    method: str
    trains: str
    epochs: int
    total_steps: int
    first_step: int
    num_images: int
    num_validation_images: int
    num_trainable_parameters: int
    trained_parts: tuple[str, ...]
    device: str
    num_threads: int
    num_prompts: int = 0
    num_pairs: int = 0


@dataclass(frozen=True, slots=True)
class PhaseChanged:
    """The run entered a phase; `detail` is a short text for the status line."""

    phase: Phase
    detail: str = ""


@dataclass(frozen=True, slots=True)
class DownloadProgress:
    """The progress of downloading a model or data set, or sending files to another machine, in millions of bytes."""

    done_mb: float
    total_mb: float
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class CacheProgress:
    """The progress of building a cache. `what` is "images", "conditioning images", "masks" or "captions"."""

    what: str
    done: int
    total: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class CacheFilled:
    """A cache has every entry of a dataset: `num_found` of `num_entries` were there before; `num_bytes` is their size.

    `what` is "images", "conditioning images" or "captions". Equal images or captions share an entry.
    """

    what: str
    num_entries: int
    num_found: int
    num_bytes: int

    @property
    def summary(self) -> str:
        """The event as a sentence, with the hit rate."""
        entries = count(self.num_entries, "entry", "entries")
        cached = f"{self.num_found:,} of {entries} found ({self.num_found / self.num_entries:.0%})"
        names = {"images": "Latent cache", "conditioning images": "Conditioning image cache", "captions": "Text cache"}
        name = names.get(self.what, self.what)
        return f"{name}: {cached}, {self.num_entries - self.num_found:,} encoded; {self.num_bytes / 1e6:,.1f} MB."


@dataclass(frozen=True, slots=True)
class ImagesDropped:
    """An epoch, counted from 1, leaves out the images of partial batches: `names` are the first of `num_images`.

    `path` is the file that lists all of them; empty if it cannot be written. Some may have other samples in the epoch.
    """

    epoch: int
    num_images: int
    names: tuple[str, ...]
    path: str = ""

    @property
    def summary(self) -> str:
        """The event as a sentence."""
        num_more = self.num_images - len(self.names)
        more = f" and {num_more:,} more" if num_more > 0 else ""
        place = ", all in dropped.csv" if more and self.path else ""
        images = f"{self.num_images:,} image{'s' if self.num_images != 1 else ''}"
        return f"Epoch {self.epoch:,} drops {images} in partial batches{place}: {', '.join(self.names)}{more}."


@dataclass(frozen=True, slots=True)
class StepFinished:
    """One optimizer step; epoch, its step and the run's step count from 1.

    `metrics` are the values that the method reports besides its loss, such as the mean "reward" of the images it
    sampled. `gradient_norms` are the norms of the trained units, before clipping; `gradient_norm` is the norm of all.
    `effective_rates` are the learning rates that an adaptive optimizer chose, by unit.
    """

    epoch: int
    epochs: int
    epoch_step: int
    epoch_steps: int
    step: int
    total_steps: int
    loss: float | None
    smoothed_loss: float | None
    gradient_norm: float | None
    images_per_second: float
    seconds_left: float | None
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    training_parts: tuple[str, ...] = ()
    num_skipped: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    gradient_norms: Mapping[str, float] = field(default_factory=dict)
    effective_rates: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ValidationFinished:
    """The plain loss on the validation images: overall, by timestep, by concept.

    `weighted_loss` is the same overall, weighted like the training loss. `best_loss` and `best_step` are the lowest
    plain loss of the run so far, this one included; a measurement before the first step does not count.
    `metrics` are further means over the images, by name (`modules/objectives/metrics.py`), of reconstructions.
    """

    step: int
    loss: float
    by_timestep: Mapping[str, float] = field(default_factory=dict)
    by_concept: Mapping[str, float] = field(default_factory=dict)
    weighted_loss: float | None = None
    best_loss: float | None = None
    best_step: int | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_best(self) -> bool:
        """Whether this is the lowest so far."""
        return self.best_step == self.step

    @property
    def metric_words(self) -> str:
        """The metrics as a text that follows the loss, such as ", PSNR 31.42, SSIM 0.9512"; empty without any."""
        return "".join(
            f", {METRICS[name].label if name in METRICS else name} {v:.4g}" for name, v in self.metrics.items()
        )


@dataclass(frozen=True, slots=True)
class RewardMeasured:
    """The rewards of images sampled with a fixed set of prompts and seeds: the mean over those that could be scored.

    `followed` is the weighted sum that the training maximizes, `held_out` the score of the reward model `held_out_by`,
    which is measured only. `by_reward_model` has the score of each reward model. `best_step` is the step at which
    `held_out` (`followed` without a held-out reward model) was highest in this run; a measurement before the first
    step does not count. `diversity` is how different the images of a prompt are, if prompts have several seeds, and
    `saturation` how colourful the images are, 0 to 1.
    """

    step: int
    num_images: int
    followed: float | None
    held_out: float | None = None
    held_out_by: str = ""
    by_reward_model: Mapping[str, float] = field(default_factory=dict)
    best_step: int | None = None
    diversity: float | None = None
    saturation: float | None = None

    @property
    def is_best(self) -> bool:
        """Whether this is the highest so far."""
        return self.best_step == self.step


@dataclass(frozen=True, slots=True)
class SampleProgress:
    """The progress of sampling, in denoising steps over all samples."""

    done: int
    total: int
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class SampleReady:
    """A sample was generated; `index` is its position among the prompts.

    `is_without_ema`: with the plain weights, besides the sample of the same prompt with the EMA weights.
    """

    step: int
    index: int
    prompt: str
    path: str
    is_without_ema: bool = False


@dataclass(frozen=True, slots=True)
class BackupSaved:
    """A complete backup from which the run can be resumed."""

    step: int
    path: str


@dataclass(frozen=True, slots=True)
class ModelSaved:
    """A file other programs can use. `is_final` marks the final result; otherwise it is an intermediate save.

    `loaded_by` names the programs that load all of it. `loading` is how completely each program loads it: "yes", "no",
    "partly", or "?" where it is unknown; older logs have numbers of layers, or nothing. `needs` is what a program that
    loads all of it needs besides: "A1111: keep the .yaml next to it". `reasons` is why a program does not load all of
    it, or why that is unknown. `best_by` is "validation" or "reward" for the best model so far, which replaces the one
    before.
    """

    step: int
    path: str
    format: str
    is_final: bool
    loaded_by: tuple[str, ...] = ()
    loading: Mapping[str, str] = field(default_factory=dict)
    needs: tuple[str, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    best_by: str = ""

    @property
    def loading_words(self) -> str:
        """The programs that load it, as a phrase; empty if nothing is known.

        Programs with the same answer and the same reason share a phrase.
        """
        rest = {p: (a, self.reasons.get(p, "")) for p, a in self.loading.items() if a != "yes"}
        phrases = [f"loads in {join_words(self.loaded_by)}"] if self.loaded_by else []
        for answer, reason in dict.fromkeys(rest.values()):
            programs = join_words([p for p, other in rest.items() if other == (answer, reason)])
            words = {"no": f"not in {programs}", "?": f"not tested in {programs}"}.get(
                answer, f"{answer} in {programs}"
            )
            phrases.append(f"{words}: {reason}" if reason else words)
        return "; ".join([*phrases, *self.needs])


@dataclass(frozen=True, slots=True)
class WarningRaised:
    """A problem the user should know about; the run continues."""

    message: str
    advice: str = ""


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run ended normally: finished, stopped by the user or by its validation, or nothing was left to train."""

    outcome: Outcome
    step: int
    message: str
    model_path: str = ""
    backup_path: str = ""

    @property
    def status(self) -> RunStatus:
        """The status of the run."""
        by_outcome = {"stopped": RunStatus.STOPPED, "stopped_early": RunStatus.STOPPED_EARLY}
        return by_outcome.get(self.outcome, RunStatus.FINISHED)

    @property
    def text(self) -> str:
        """How the run ended, as a sentence."""
        return self.message


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The run failed: a plain sentence, an advice, and the file that holds the technical details.

    `missing_model` is the name of a model that could neither be found nor downloaded, `remedy` the name of what fixes
    it (`modules/system/remedies.py`), if something does. `is_refused`: the config has errors, so nothing was started.
    `is_crash` is set by whoever follows a process that ended without reporting a failure.
    """

    message: str
    advice: str = ""
    details_path: str = ""
    backup_path: str = ""
    missing_model: str = ""
    remedy: str = ""
    is_refused: bool = False
    is_crash: bool = False

    @property
    def status(self) -> RunStatus:
        """The status of the run."""
        return RunStatus.CRASHED if self.is_crash else RunStatus.FAILED

    @property
    def text(self) -> str:
        """The message and the advice."""
        return f"{self.message} {self.advice}".strip()


ProgressEvent = DownloadProgress | CacheProgress | StepFinished | SampleProgress | MemoryMeasured
"""Events that may be coalesced: the newest one replaces the others. Every other event must arrive."""
SummarizedEvent = (
    CacheFilled | ImagesDropped | BlocksCompiled | SettingChosen | ProfileWritten | ImagesReported | PaceMeasured
)
"""Events that the console and the window show by their own summary."""
Event = (
    RunStarted
    | PhaseChanged
    | DownloadProgress
    | CacheProgress
    | CacheFilled
    | ImagesDropped
    | BlocksCompiled
    | SettingChosen
    | ProfileWritten
    | ImagesReported
    | PaceMeasured
    | StepFinished
    | MemoryMeasured
    | ValidationFinished
    | RewardMeasured
    | RolloutSampled
    | ChoicesWanted
    | SampleProgress
    | SampleReady
    | BackupSaved
    | ModelSaved
    | WarningRaised
    | RunFinished
    | RunFailed
)
