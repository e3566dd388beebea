"""The self-test of a model: memorize one image, with settings that are known to work and with a config's
settings.

If both learn, the model, the program and the settings work. If only the first does, the settings are wrong. Losses are
those of validation, at fixed timesteps with fixed noise, so that a fall is not chance.

Before it learns anything, a model is compared with one that knows the noise level and nothing of images, the best
linear guess of each latent value from its noisy one (`uninformed_loss`). That loss is computed, not measured, for white
latents of variance 1, to which every family normalizes its own. A trained model is far below it, since it knows its
neighbours; one above it has damaged weights, or what is known about it is wrong, such as the prediction type. A
measured band of each published model would be narrower, but depends on the image: users name losses of about 0.1 for
SD and of 0.02 to 0.7 for single steps of FLUX.1 Kontext, a third of this bound and less.
"""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modules.adapters.registry import DEFAULT_ADAPTER
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.config.sections.loss import Loss
from modules.config.sections.model import Part
from modules.config.sections.noise import Noise
from modules.config.sections.training import Ema, Training
from modules.data.concept import Concept
from modules.diffusion.schedule import usual_cumulative_alphas
from modules.optim.registry import DEFAULT_OPTIMIZER
from modules.optim.schedule_registry import DEFAULT_SCHEDULE
from modules.settings.edit import replace_value
from modules.settings.every import Every
from modules.settings.shared_types import side_of
from modules.system.atomic import copy_file, write_text
from modules.system.errors import DarkroomError
from trainer.commands import StopRequested
from trainer.events import Event, RunFailed, RunFinished, SampleReady, StepFinished, ValidationFinished
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.launch import RunRequest
from trainer.preflight.model import found_model
from trainer.run.execute import execute_guarded

KNOWN_RATE = 5e-4
"""Of AdamW for a LoRA: more than usual, as it has to show within a minute."""
_HIGH_SHARE = 0.75  # of the uninformed loss: above it a trained model is unusual, even for a hard image
_CLEAR_FALL = 0.05
_DIVERGED = 1.1
_NUM_TIMESTEPS = 10

Verdict = Literal["passed", "settings", "diverges", "weights", "training", "failed"]


@dataclass(frozen=True, slots=True)
class ImageTrial:
    """Training on one image: its validation loss before and after, NaN if not measured; why it failed, if it did."""

    before: float = math.nan
    after: float = math.nan
    failure: str = ""
    samples: tuple[str, ...] = ()

    @property
    def fall(self) -> float:
        """The share by which the loss fell; negative if it rose."""
        return 1 - self.after / self.before

    @property
    def learns(self) -> bool:
        """Whether it fell clearly."""
        return self.fall >= _CLEAR_FALL

    @property
    def diverges(self) -> bool:
        """Whether it rose clearly, or is not a number."""
        return not math.isfinite(self.after) or self.after > _DIVERGED * self.before


@dataclass(frozen=True, slots=True)
class SelfTestRequest:
    """The config and the image to learn, with its caption; the folder of the results; the steps of each trial."""

    config: Config
    image: Path
    caption: str
    out: Path
    num_steps: int = 60
    approved_code: frozenset[str] = frozenset()


def self_test(request: SelfTestRequest, job: Job) -> JobFinished:
    """Carry out the trials and return the verdict, with `self_test.json` and samples before and after.

    Runs are in a folder next to the results that is removed at the end. Raises DarkroomError for a config whose model
    cannot be tested in this way, and StopRequested.
    """
    config = request.config
    if config.training.trains == "vae":
        raise DarkroomError(
            "The self-test trains the denoiser, and this config trains the VAE.",
            advice="Choose LoRA or full fine-tuning as the training target.",
        )
    scratch = request.out / "runs"
    try:
        known = _trial(request, with_known_settings(config), scratch / "known", job, "Known settings")
        mine = None
        if not known.failure and known.learns and config.training.trains != "embedding":
            mine = _trial(request, config, scratch / "config", job, "Settings of the config")
        shown = request.out / f"image{request.image.suffix}"
        copy_file(request.image, shown)
        paths = [str(shown), *_keep(known, request.out, "known")]
        paths += _keep(mine, request.out, "config") if mine is not None else []
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    bound = uninformed_loss(config)
    verdict, texts = verdict_of(known, mine, bound=bound, learning_rate=config.training.learning_rate)
    facts: dict[str, object] = {"verdict": verdict, "words": texts, "steps": request.num_steps}
    facts |= {"image": str(request.image), "uninformed_loss": bound}
    trials = {"known": _facts(known), "config": None if mine is None else _facts(mine)}
    report = request.out / "self_test.json"
    write_text(report, json.dumps({**facts, **trials}, indent=1) + "\n")
    headline = "The self-test is passed." if verdict == "passed" else "The self-test is not passed."
    return JobFinished(headline, (str(report), *paths), tuple(texts), code=0 if verdict == "passed" else 1)


def uninformed_loss(config: Config) -> float:
    """Return the loss of a model that knows the noise level but nothing of images, at the timesteps of the self-test.

    With `x_t = a x_0 + b eps` and the target `c x_0 + d eps`, of independent x_0 and eps of variance 1, the best guess
    from x_t alone has the mean squared error `(c b - d a)^2 / (a^2 + b^2)`: `abar` for epsilon, 1 for v-prediction, and
    `1 / (sigma^2 + (1 - sigma)^2)` for a flow. An unknown prediction type counts as v-prediction.
    """
    levels = [(n + 0.5) / _NUM_TIMESTEPS for n in range(_NUM_TIMESTEPS)]
    if config.family.process.flow is not None:
        return sum(1 / (s**2 + (1 - s) ** 2) for s in levels) / len(levels)
    prediction = getattr(config.model.family, "prediction_type", "epsilon")
    if prediction == "auto":
        found = found_model(config)
        prediction = found.prediction if found is not None else ""
    if prediction != "epsilon":
        return 1.0
    abar_T = usual_cumulative_alphas(config.family.process.schedule)
    return sum(float(abar_T[int(s * len(abar_T))]) for s in levels) / len(levels)


def verdict_of(
    known: ImageTrial, mine: ImageTrial | None, *, bound: float, learning_rate: float
) -> tuple[Verdict, list[str]]:
    """Return the verdict of the trials with the known settings and with the config's, and its sentences.

    `bound` is the loss of a model that knows nothing of images. Without a second trial only the model is tested.
    """
    if known.failure:
        return "failed", [f"With settings that are known to work the run failed: {known.failure}"]
    share = known.before / bound
    is_compared = (
        f"Before training its loss is {known.before:.2g}, {share:.0%} of the loss of a model that knows nothing"
    )
    if not share <= 1:
        return "weights", [
            f"The model predicts nothing about this image. {is_compared} of images ({bound:.2g}).",
            "Either its weights are damaged, or the settings of the model do not fit them: check the family, the "
            "prediction type, zero terminal SNR and the files of single parts.",
        ]
    if not known.learns:
        return "training", [
            f"With settings that are known to work {_change(known)}. It should fall by more than {_CLEAR_FALL:.0%}.",
            "Try more steps (--steps). If that changes nothing, this is a bug: please report it with self_test.json.",
        ]
    works = f"The model learns: with settings that are known to work {_change(known)}. {is_compared} of images."
    if share > _HIGH_SHARE:
        works += (
            f" Trained models are usually below {_HIGH_SHARE:.0%}: check the family, the prediction type and parts."
        )
    if mine is None:
        return "passed", [works]
    with_mine = f"With the settings of the config {_change(mine)}"
    if mine.failure:
        return "settings", [works, f"With the settings of the config the run failed: {mine.failure}"]
    if mine.diverges:
        return "diverges", [works, f"{with_mine}: lower the learning rate, now {learning_rate:g}."]
    if not mine.learns:
        raise_it = f"raise the learning rate, now {learning_rate:g}, or look at the optimizer, the rank and the layers"
        return "settings", [works, f"{with_mine}, which is hardly anything: {raise_it}."]
    return "passed", [works, f"{with_mine}: they work, too."]


def _facts(trial: ImageTrial) -> dict[str, object]:
    losses = {"before": trial.before, "after": trial.after}
    return {**{name: loss if math.isfinite(loss) else None for name, loss in losses.items()}, "failure": trial.failure}


def _change(trial: ImageTrial) -> str:
    if not math.isfinite(trial.after):
        return "the loss is not a number in the end"
    verb = "falls" if trial.fall >= 0 else "rises"
    return f"the loss {verb} by {abs(trial.fall):.1%}, from {trial.before:.3g} to {trial.after:.3g}"


def with_known_settings(config: Config) -> Config:
    """Return the config with settings that train any working model; what decides memory and precision stays."""
    fresh = Training.with_defaults()
    for path, value in (
        ("training.trains", "adapter"),
        ("training.layer_filter", fresh.layer_filter),
        ("training.learning_rate", KNOWN_RATE),
        ("training.learning_rate_scaler", fresh.learning_rate_scaler),
        ("training.optimizer", DEFAULT_OPTIMIZER.settings.with_defaults()),
        ("training.clip_grad_norm", fresh.clip_grad_norm),
        ("training.noise", Noise.with_defaults()),
        ("training.loss", Loss.with_defaults()),
        ("adapter", DEFAULT_ADAPTER.settings.with_defaults()),
    ):
        config = replace_value(config, path, value)
    no_stop = Part.with_defaults().stop_after
    for part in config.family_parts:
        changes = {"train": part.role == "denoiser", "learning_rate": None, "stop_after": no_stop}
        config = replace_value(config, f"parts.{part.name}", config.part(part.name).model_copy(update=changes))
    return config


def _on_one_image(request: SelfTestRequest, config: Config, workspace: Path) -> Config:
    """Return the config as a run of some steps on the image, which is measured before and after."""
    resolution = config.data.resolution_px[0]  # of several, each of which would have steps of its own
    side = max(64, side_of(resolution) // 64 * 64)
    concept = Concept(
        name="the image", path=str(request.image), caption_source="fixed_text", fixed_caption=request.caption
    )
    for path, value in (
        ("general.workspace_dir", str(workspace)),
        ("general.tensorboard", False),
        ("general.only_cache", False),
        ("data.resolution_px", (resolution,)),
        ("concepts_file", ""),
        ("concepts", (concept, concept.model_copy(update={"name": "again", "kind": "validation"}))),
        ("masks.enabled", False),
        ("training.method", Training.with_defaults().method),
        ("training.schedule", DEFAULT_SCHEDULE.settings.with_defaults()),
        ("training.epochs", request.num_steps),
        ("training.batch_size", 1),
        ("training.accumulation_steps", 1),
        ("training.ema", Ema.with_defaults()),
        ("validation.every", Every(n=request.num_steps, unit="step")),
        ("validation.num_timesteps", _NUM_TIMESTEPS),
        ("validation.keep_best", False),
        ("validation.early_stopping_patience", 0),
        ("sampling.every", Every()),
        ("sampling.at_start", True),
        ("sampling.at_end", True),
        ("sampling.model", ""),
        ("sampling.prompts_file", ""),
        ("sampling.prompts", (SamplePrompt(prompt=request.caption, width_px=side, height_px=side),)),
        ("backup.every", Every()),
        ("backup.save_every", Every()),
        ("backup.at_end", False),
        ("output.destination", str(workspace / "self_test.safetensors")),
        ("multi_gpu.enabled", False),
    ):
        config = replace_value(config, path, value)
    return config


def _trial(request: SelfTestRequest, config: Config, workspace: Path, job: Job, what: str) -> ImageTrial:
    """Train on the image. Raises StopRequested."""
    measured: list[float] = []
    samples: list[str] = []
    ending: list[RunFinished | RunFailed] = []

    def take(event: Event) -> None:
        match event:
            case StepFinished(step=step):
                job.progress(what, step, request.num_steps)
            case ValidationFinished(loss=loss):
                measured.append(loss)
            case SampleReady(path=path):
                samples.append(path)
            case RunFinished() | RunFailed():
                ending.append(event)
            case _:
                pass

    job.progress(what, 0, request.num_steps)
    changed = _on_one_image(request, config, workspace)
    run = RunRequest(changed, in_window=False, allowed_code=request.approved_code, replaces=True)
    execute_guarded(run, emit=take, desk=job.desk)
    (end,) = ending
    if isinstance(end, RunFinished) and end.outcome == "stopped":
        raise StopRequested
    failure = f"{end.message} {end.advice}".strip() if isinstance(end, RunFailed) else ""
    before, after = (measured[0], measured[-1]) if len(measured) > 1 else (math.nan, math.nan)
    return ImageTrial(before, after, failure, tuple(samples))


def _keep(trial: ImageTrial, out: Path, name: str) -> list[str]:
    """Copy the first and the last sample of a trial out of its run; return the copies."""
    kept = []
    for when, path in zip(("before", "after"), trial.samples[:1] + trial.samples[-1:], strict=False):
        copy = out / f"{name}_{when}{Path(path).suffix}"
        copy_file(Path(path), copy)
        kept.append(str(copy))
    return kept
