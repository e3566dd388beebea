"""Building the callbacks of a run: metrics, dropped images, validation, sampling, saving and rewards."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import (
    adapter_form,
    fit_of_references,
    steps_per_group,
    trained_parts,
    trains_on_pixels,
)
from modules.data.dataset import Dataset
from modules.memory.compiled_blocks import Compilation
from modules.objectives.denoise import timestep_weights
from modules.objectives.perceptual import PerceptualDistance
from modules.system.paths import from_root
from trainer.callbacks.compile_trial import CompileTrial, sizes_of_steps
from trainer.callbacks.guards import Guards
from trainer.callbacks.image_report import ImageReportCallback
from trainer.callbacks.image_sampler import ImageSampler, SampledModel
from trainer.callbacks.pace import MachineCauses, PaceWatch, measure_peaks
from trainer.callbacks.profiling import Profiling
from trainer.callbacks.reconstruction import ReconstructionMeasure, ReconstructionSamples
from trainer.callbacks.reports import CompileReport, DroppedImages, Metrics
from trainer.callbacks.rewards import RewardCallback
from trainer.callbacks.sample_files import SampleFiles
from trainer.callbacks.sampling import SamplingCallback
from trainer.callbacks.saving import SavingCallback
from trainer.callbacks.side_output import SideOutput
from trainer.callbacks.tensorboard_log import TensorBoardLog
from trainer.callbacks.validation import ValidationCallback
from trainer.data.loader import Loader
from trainer.export.adapter import AdapterExporter
from trainer.export.embeddings import EmbeddingExporter, with_embeddings
from trainer.export.exporter import Exporter
from trainer.export.metadata import thumbnail_of
from trainer.export.model import AutoencoderExporter, ModelExporter
from trainer.methods.measured_prompts import measured_prompts
from trainer.methods.reward_models import RewardModels
from trainer.preflight.sample_tiles import SampleTiles
from trainer.run.data import Loaders
from trainer.run.machine import Machine
from trainer.run.model import LoadedModel
from trainer.run.processes import WholeValues
from trainer.run.recipe import earlier_pace
from trainer.run.setup import RunSetup
from trainer.run.stepper import evaluation_of
from trainer.run_folder.fork import COMPILE_FILE
from trainer.run_folder.run_dir import started_at
from trainer.step.callback import Callback
from trainer.step.counters import Counters
from trainer.step.evaluation import Evaluation
from trainer.step.fixed_losses import FixedLosses
from trainer.step.meeting import Meeting
from trainer.step.prediction_modes import prior_mode
from trainer.step.stepper import Stepper


@dataclass(frozen=True, eq=False)
class RunCallbacks:
    """The callbacks that are also called at the start or the end of a run, and the log they share."""

    metrics: Metrics
    dropped: DroppedImages
    pace: PaceWatch
    validation: ValidationCallback
    image_report: ImageReportCallback
    sampling: SamplingCallback | ReconstructionSamples
    saving: SavingCallback
    rewards: RewardCallback | None
    guards: Guards
    tensorboard: TensorBoardLog | None
    profiling: Profiling

    @property
    def should_stop(self) -> bool:
        """Whether early stopping ends the run, by validation loss, by reward or by a guard against overoptimization."""
        by_reward = self.rewards is not None and (self.rewards.search.should_stop or bool(self.guards.reason))
        return self.validation.search.should_stop or by_reward


def build_callbacks(
    setup: RunSetup,
    model: LoadedModel,
    loaders: Loaders,
    stepper: Stepper,
    total_steps: int,
    reward_models: RewardModels | None,
    perceptual: PerceptualDistance | None,
    meeting: Meeting,
) -> RunCallbacks:
    """Return the callbacks of a run of `total_steps` steps; `reward_models` only if its method needs them.

    `perceptual` is the perceptual distance in the loss of a VAE. The processes of the `meeting` share validation and
    samples.
    """
    config, machine, log, desk = setup.config, setup.machine, setup.log, setup.desk
    device, evaluation = machine.train_device, evaluation_of(model, stepper)
    first_step = setup.saved.counters.step if setup.saved else 0
    writes_log = config.general.tensorboard and machine.ranks.rank.is_main
    folder = setup.run_dir / "tensorboard"
    tensorboard = TensorBoardLog(folder, first_step=first_step, emit=log.emit) if writes_log else None
    sampling = _sampling(setup, model, loaders, evaluation, tensorboard, meeting)
    saving = _saving(setup, model, loaders, WholeValues(evaluation, model.sharded, meeting), total_steps)
    guards = Guards(config.reward)
    losses = _fixed_losses(config, model, machine, check=meeting.check)
    return RunCallbacks(
        metrics=Metrics(
            emit=log.emit,
            epochs=config.training.epochs,
            total_steps=total_steps,
            log=tensorboard,
            steps_per_group=steps_per_group(config),
            names=model.unit_names,
        ),
        dropped=DroppedImages(
            loaders.training.dataset,
            loaders.training.plans,
            epochs=config.training.epochs,
            run_dir=setup.run_dir,
            emit=log.emit,
        ),
        pace=PaceWatch(
            log.emit,
            MachineCauses(device),
            peaks=functools.partial(measure_peaks, device),
            earlier=functools.partial(earlier_pace, setup.run_dir),
        ),
        validation=ValidationCallback(
            config.validation,
            loader=loaders.validation,
            losses=losses,
            placement=model.placement,
            evaluation=evaluation,
            images=loaders.validation.plans.fingerprint,
            keep=lambda counters: saving.save_best(counters, "validation"),
            desk=desk,
            emit=log.emit,
            log=tensorboard,
            reconstruction=ReconstructionMeasure(model.family, config.training.vae, perceptual)
            if trains_on_pixels(config)
            else None,
            meeting=meeting,
        ),
        image_report=ImageReportCallback(
            losses if setup.datasets.settings.has_latents else None,
            original=functools.partial(prior_mode, model.adapters, (), model.trained_modules, machine.precision)
            if model.adapters
            else None,
            training=loaders.training,
            validation=loaders.validation,
            plans_once=setup.datasets.settings.plans_of(loaders.training.dataset.each_once(), is_validation=True),
            placement=model.placement,
            evaluation=evaluation,
            run_dir=setup.run_dir,
            clock=setup.clocks.seconds,
            desk=desk,
            emit=log.emit,
            meeting=meeting,
        ),
        sampling=sampling,
        saving=saving,
        rewards=None
        if reward_models is None
        else RewardCallback(
            config.reward,
            reward_models,
            measured_prompts(config, loaders.validation.dataset, loaders.training.dataset),
            image_sampler=_image_sampler(setup, model, model.measured),
            evaluation=evaluation,
            device=device,
            guards=guards,
            keep=lambda counters: saving.save_best(counters, "reward"),
            desk=desk,
            emit=log.emit,
            log=tensorboard,
        ),
        guards=guards,
        tensorboard=tensorboard,
        profiling=Profiling(setup.run_dir, desk, log.emit),
    )


def _fixed_losses(config: Config, model: LoadedModel, machine: Machine, *, check: Callable[[], None]) -> FixedLosses:
    loss = config.training.loss
    return FixedLosses(
        model.family,
        machine.precision,
        machine.train_device,
        config.general.seed,
        config.validation.num_timesteps,
        functools.partial(timestep_weights, model.family.process, weighting=loss.weighting, gamma=loss.gamma),
        check,
    )


def _sampling(
    setup: RunSetup,
    model: LoadedModel,
    loaders: Loaders,
    evaluation: Evaluation,
    log: TensorBoardLog | None,
    meeting: Meeting,
) -> SamplingCallback | ReconstructionSamples:
    """Return the callback that samples prompts; in a run of the VAE, the one that shows reconstructions."""
    config = setup.config
    folder = setup.run_dir / "samples"
    output = SideOutput("The samples", folder, setup.log.emit)
    files = SampleFiles(folder, config.sampling, setup.log.emit, log, output)
    if trains_on_pixels(config):
        return ReconstructionSamples(
            config.sampling,
            loader=loaders.validation if loaders.validation.dataset.examples else loaders.training,
            family=model.family,
            placement=model.placement,
            evaluation=evaluation,
            files=files,
            desk=setup.desk,
            emit=setup.log.emit,
            meeting=meeting,
        )
    return SamplingCallback(
        config.sampling,
        image_sampler=_image_sampler(setup, model, model.sampled),
        adapters=model.adapters,
        evaluation=evaluation,
        files=files,
        desk=setup.desk,
        emit=setup.log.emit,
        meeting=meeting,
    )


def _image_sampler(setup: RunSetup, model: LoadedModel, sampled: SampledModel | None) -> ImageSampler:
    """Return the sampler of a run's images, of the run's own model or of another one's denoiser."""
    config, machine = setup.config, setup.machine
    return ImageSampler(
        model.family,
        model.placement,
        machine.train_device,
        machine.precision,
        sampled,
        model.encoded,
        SampleTiles(config, machine.free_now).of,
        fit_of_references(config),
    )


def _saving(
    setup: RunSetup, model: LoadedModel, loaders: Loaders, whole: WholeValues, total_steps: int
) -> SavingCallback:
    config = setup.config
    destination = from_root(config.output.destination)
    return SavingCallback(
        config.backup.save_every,
        skip_first=config.backup.save_skip_first,
        destination=destination,
        folder=setup.run_dir / "save",
        name=config.backup.save_prefix or destination.stem,
        format_name=_format_name(config, model),
        exporter=exporter_of(config, setup.run_dir, model, loaders.training.dataset, total_steps),
        values=whole.values,
        now=setup.clocks.now,
        desk=setup.desk,
        emit=setup.log.emit,
    )


def _format_name(config: Config, model: LoadedModel) -> str:
    if config.training.trains == "embedding":
        return "embedding"
    return adapter_form(config) if model.adapters else config.output.model_format


def exporter_of(config: Config, run_dir: Path, model: LoadedModel, dataset: Dataset, total_steps: int) -> Exporter:
    """Return the exporter that writes a run's result, with the files of its trained embeddings."""
    thumbnail = functools.partial(thumbnail_of, run_dir / "samples")
    if trains_on_pixels(config):
        [part] = trained_parts(config)
        return AutoencoderExporter(model.family.parts[part.name], config)
    words = tuple(w for w in model.embeddings if w.trained)
    if config.training.trains == "embedding":
        main: Exporter = EmbeddingExporter(words[0], model.family, config, thumbnail)
        return with_embeddings(main, words[1:], model.family, config, thumbnail)
    if not model.adapters:
        main = ModelExporter(model.family, config, thumbnail)
    else:
        main = AdapterExporter(
            model.adapters,
            model.family.lora_naming,
            config,
            dataset,
            thumbnail,
            started=started_at(run_dir),
            total_steps=total_steps,
            start=model.start,
            bundled=words if getattr(config.adapter, "bundle_embeddings", False) else (),
            embedding_tensors=model.family.spec.text.embedding_tensors,
        )
    return with_embeddings(main, words, model.family, config, thumbnail)


def compilation_callbacks(
    setup: RunSetup, compilation: Compilation | None, loader: Loader, counters: Counters
) -> tuple[Callback, ...]:
    """Return the callbacks of compiled blocks: the automatic choice, and the report."""
    if compilation is None:
        return ()
    emit, config = setup.log.emit, setup.config
    report = CompileReport(compilation, emit)
    if config.model.compile != "auto":
        return (report,)
    trial = CompileTrial(
        compilation,
        path=setup.run_dir / COMPILE_FILE,
        first_step=counters.step,
        total_steps=loader.plans.total_steps(config.training.epochs),
        sizes=lambda epoch: sizes_of_steps(loader.plans, epoch),
        emit=emit,
    )
    return (trial, report)  # in this order: the choice names the reason of a failure
