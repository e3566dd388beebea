"""The self-test of a model: memorize one image, with settings that are known to work and with a config's settings.

Before that the model is measured (`model_measures.py`): its weights, its VAE, and whether it follows prompts. Then both
trials decide between the model, the program and the settings. If only the settings fail, each group of them is
replaced by the known one in turn: the first that lets the model learn is the wrong one. Losses are those of validation,
at fixed timesteps with fixed noise, so that a fall is not chance, and equal ones mean equal weights.

The untrained model is compared with one that knows the noise level and nothing of images, the best linear guess of
each latent value from its noisy one (`uninformed_loss`), overall and at each timestep. A trained model is far below it,
since it knows the neighbours; one above it has damaged weights, or what is known of it is wrong, such as the prediction
type. A measured band of each published model would be narrower, but depends on the image.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.config.usage import reads_references, trained_parts
from modules.settings.edit import has_path, replace_value
from modules.system.atomic import copy_file, write_text
from modules.system.errors import DarkroomError
from modules.system.problem import join_words
from trainer.commands import StopRequested
from trainer.events import Event, RunFailed, RunFinished, SampleReady, StepFinished, ValidationFinished
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.launch import RunRequest
from trainer.preflight.denoiser import distilled_by
from trainer.probe.model_measures import measure_model
from trainer.probe.self_test_settings import groups, on_one_image, side_px_of, with_known_settings
from trainer.probe.self_test_verdict import (
    ImageTrial,
    Measures,
    Verdict,
    of_known_settings,
    of_levels,
    of_measures,
    of_prediction_type,
    of_predictions,
    of_prompts,
    of_scale,
    of_settings,
    of_untrained_denoiser,
    passed,
    predicts_well,
    weigh,
)
from trainer.probe.trial import release_memory
from trainer.run.execute import execute_guarded
from trainer.run.failure import failure_of

_NUM_TIMESTEPS = 10
_PREDICTION_TYPE = "model.family.prediction_type"
_PREDICTION_LABELS = {"epsilon": "epsilon", "v_prediction": "v-prediction"}


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
    tester = _Tester(request, scratch, job)
    try:
        verdict = tester.find()
        shown = request.out / f"image{request.image.suffix}"
        copy_file(request.image, shown)
        paths = [str(shown)]
        for name in ("known", "config"):
            paths += _keep(tester.trials.get(name, ImageTrial()), request.out, name)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    facts: dict[str, object] = {**asdict(verdict), "image": str(request.image), "steps": request.num_steps}
    trials = {name: asdict(trial) for name, trial in tester.trials.items()}
    facts |= {"measures": asdict(tester.measures), "trials": trials}
    report = request.out / "self_test.json"
    write_text(report, json.dumps(_finite(facts), indent=1) + "\n")
    return JobFinished(verdict.message, (str(report), *paths), verdict.notes, code=0 if verdict.cause == "none" else 1)


class _Tester:
    """Measures and tries until it is certain what is wrong, in an order in which each step relies on the ones before.

    Doubts about the model are weighed at the end against what it has learned. `measures` and `trials`, by name, are the
    results so far.
    """

    def __init__(self, request: SelfTestRequest, scratch: Path, job: Job) -> None:
        self._request, self._scratch, self._job = request, scratch, job
        self._known = with_known_settings(request.config)
        self.trials: dict[str, ImageTrial] = {}
        self.measures = Measures()

    def find(self) -> Verdict:
        """Return the verdict. Raises StopRequested."""
        try:
            return self._find()
        except StopRequested:
            raise
        except Exception as error:  # noqa: BLE001 - whatever torch raises for a model
            return self._failed(failure_of(error, None).text)

    def _find(self) -> Verdict:
        config = self._request.config
        self.measures = measures = self._measure(self._known, "1 of 3: looking at the model")
        doubts: list[Verdict] = []
        if verdict := of_measures(measures):
            if not verdict.is_doubt:
                return verdict
            doubts.append(verdict)
        known = self._try("known", self._known, "2 of 3: learning with known settings")
        has_values = known.by_timestep and math.isfinite(measures.decoding_error)
        if has_values and (verdict := self._of_predictions(known, doubts)):
            return verdict
        failed = self._failed(known.failure, has_trained=known.has_trained) if known.failure else None
        found = failed or of_known_settings(known)
        if found is not None and (failed or known.changes_nothing or not doubts):
            return weigh(doubts, found, known=known, mine=None)
        label, trained = config.family.denoiser.label, [part.label for part in trained_parts(config)]
        if config.training.trains == "embedding":
            return weigh(doubts, found or passed(known, None, measures), known=known, mine=None)
        if label not in trained:
            found = found or of_untrained_denoiser(label, join_words(trained), known)
            return weigh(doubts, found, known=known, mine=None)
        mine = self._try("config", config, "3 of 3: learning with your settings")
        is_explained = any(doubt.explains_settings for doubt in doubts)
        culprit = "" if mine.works or not known.learns or is_explained else self._culprit()
        found = of_settings(mine, culprit=culprit, known=known) or passed(known, mine, measures)
        return weigh(doubts, found, known=known, mine=mine)

    def _of_predictions(self, known: ImageTrial, doubts: list[Verdict]) -> Verdict | None:
        """Return the verdict on predictions that are certainly wrong, if they are; otherwise add to the doubts."""
        config, measures = self._request.config, self.measures
        label, is_distilled = config.family.denoiser.label, bool(distilled_by(config))
        if not is_distilled and not doubts and (scale := of_scale(known, measures)):
            doubts.append(scale)
        if doubt := of_predictions(known, measures, denoiser=label, is_distilled=is_distilled):
            if verdict := self._other_prediction():
                return verdict
            doubts.append(doubt)
        if not reads_references(config) and (verdict := of_prompts(measures)):  # there is nothing to edit
            if not verdict.is_doubt and not doubts:
                return verdict
            doubts.append(verdict)
        if not doubt and not is_distilled and (verdict := of_levels(known, measures, denoiser=label)):
            doubts.append(verdict)
        return None

    def _measure(self, config: Config, what: str) -> Measures:
        image, side_px = self._request.image, side_px_of(config)
        measures = measure_model(config, image, side_px=side_px, num_timesteps=_NUM_TIMESTEPS, job=self._job, what=what)
        release_memory()
        return measures

    def _failed(self, reason: str, *, has_trained: bool = False) -> Verdict:
        if has_trained:
            message = "Probably this is a bug: training fails even with settings that are known to work."
            return Verdict("program", message, (reason, "If that does not help, report it with self_test.json."))
        return Verdict("unknown", "The self-test cannot be carried out, because the run does not start.", (reason,))

    def _try(self, name: str, config: Config, what: str, *, num_steps: int | None = None) -> ImageTrial:
        num = num_steps or self._request.num_steps
        changed = on_one_image(
            config,
            self._request.image,
            self._request.caption,
            workspace=self._scratch / name.replace(" ", "_"),
            num_steps=num,
            num_timesteps=_NUM_TIMESTEPS,
        )
        trial = self.trials[name] = _trial(changed, num, self._request.approved_code, self._job, what)
        return trial

    def _other_prediction(self) -> Verdict | None:
        """Return the verdict on the prediction type if the model predicts well with the other one."""
        used = self.measures.prediction_type
        if used == "flow" or not has_path(self._known, _PREDICTION_TYPE):
            return None
        other = "v_prediction" if used == "epsilon" else "epsilon"
        changed = replace_value(self._known, _PREDICTION_TYPE, other)
        what = "Trying another prediction type"
        measures = self._measure(changed, what)
        trial = self._try("prediction", changed, what, num_steps=1)
        if trial.failure or not predicts_well(trial, measures):
            return None
        return of_prediction_type(_PREDICTION_LABELS[used], _PREDICTION_LABELS[other])

    def _culprit(self) -> str:
        """Return which settings are wrong: the first group without which the model learns; empty if there is none."""
        config = self._request.config
        for name, with_known, sentence in groups(config):
            changed = with_known(config)
            if changed != config and self._try(name, changed, f"Which setting is wrong: {name}?").works:
                return sentence
        return ""


def _trial(changed: Config, num_steps: int, approved_code: frozenset[str], job: Job, what: str) -> ImageTrial:
    """Train on the image. Raises StopRequested."""
    measured: list[ValidationFinished] = []
    samples: list[str] = []
    norms: list[float] = []
    ending: list[RunFinished | RunFailed] = []

    def take(event: Event) -> None:
        match event:
            case StepFinished(step=step, gradient_norm=norm):
                job.progress(what, step, num_steps)
                norms.append(norm or 0.0)
            case ValidationFinished():
                measured.append(event)
            case SampleReady(path=path):
                samples.append(path)
            case RunFinished() | RunFailed():
                ending.append(event)
            case _:
                pass

    job.progress(what, 0, num_steps)
    run = RunRequest(changed, in_window=False, allowed_code=approved_code, replaces=True)
    execute_guarded(run, emit=take, desk=job.desk)
    (end,) = ending
    if isinstance(end, RunFinished) and end.outcome == "stopped":
        raise StopRequested
    failure = end.text if isinstance(end, RunFailed) else ""
    if not measured:
        return ImageTrial(failure=failure, samples=tuple(samples), gradient_norm=max(norms, default=math.nan))
    before, after = measured[0], measured[-1].loss if len(measured) > 1 else math.nan
    return ImageTrial(before.loss, after, failure, tuple(samples), before.by_timestep, max(norms, default=math.nan))


def _keep(trial: ImageTrial, out: Path, name: str) -> list[str]:
    """Copy the first and the last sample of a trial out of its run; return the copies."""
    kept = []
    for when, path in zip(("before", "after"), trial.samples[:1] + trial.samples[-1:], strict=False):
        copy = out / f"{name}_{when}{Path(path).suffix}"
        copy_file(Path(path), copy)
        kept.append(str(copy))
    return kept


def _finite(value: Any) -> Any:
    """Return JSON-safe values, with null for numbers that are not finite."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value
