"""The check itself: every rule, in the order in which the user reads the results."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.usage import learns_from, rollout_of, step_passes, trains_on_pixels, trains_on_reward
from modules.data.dataset import Dataset
from modules.data.datasets import Datasets
from modules.data.plans import EpochPlans
from modules.families.kinds.file_kind import FileKind
from modules.rewards.user_code_file import approved_hashes
from modules.system.errors import DarkroomError
from modules.system.file_errors import plain_reason
from modules.system.hardware import gpu_memory
from modules.system.problem import Problem, count
from trainer.data.datasets import datasets_of
from trainer.data.hub_datasets import with_local_folders
from trainer.preflight.budget import describe_download, describe_memory, trained_parts
from trainer.preflight.captions import (
    CaptionsReport,
    problems_of_caption_settings,
    problems_of_embeddings,
    report_on_captions,
)
from trainer.preflight.companions import problems_of_companions
from trainer.preflight.denoiser import (
    problems_of_distilled,
    problems_of_image_sides,
    problems_of_prediction,
    problems_of_sample_sides,
)
from trainer.preflight.devices import problems_of_devices
from trainer.preflight.estimates import figures_of, problems_of_estimates, sizes_of
from trainer.preflight.fit import free_here
from trainer.preflight.graphs import problems_of_graphs
from trainer.preflight.images import problems_of_concept_folders, problems_of_images, problems_of_sample_images
from trainer.preflight.length import problems_of_length, problems_of_validation
from trainer.preflight.missing_captions import problems_of_captions_files, problems_of_missing_captions
from trainer.preflight.model import kind_of_model, problems_of_model, without_lacking_parts
from trainer.preflight.part_files import problems_of_part_files, problems_of_separate_parts
from trainer.preflight.passes import trace_unknown
from trainer.preflight.places import problems_of_places
from trainer.preflight.ranks import problems_of_ranks
from trainer.preflight.report import Preview, Progress, Report, no_progress
from trainer.preflight.requirements import problems_of_packages, problems_of_speed
from trainer.preflight.resume import problems_of_other_runs, problems_of_resume
from trainer.preflight.reward_models import (
    problems_of_measuring,
    problems_of_perceptual,
    problems_of_reward_models,
    problems_of_reward_servers,
)
from trainer.preflight.room import automatic_parts, on_card
from trainer.preflight.run_budget import Budget, known_budget
from trainer.preflight.sampling_model import problems_of_sampling_model
from trainer.preflight.start_from import problems_of_start
from trainer.preflight.training_adapter import problems_of_training_adapter
from trainer.preflight.vae import problems_of_vaes
from trainer.run_folder.backup import BackupInfo, find_backup
from trainer.run_folder.run_dir import existing_start_copy

_REWARD_MODELS = ("reward.", "training.method")


def check(
    config: Config,
    *,
    resume_from: Path | None = None,
    approved_code: Collection[str] | None = None,
    datasets: Datasets | None = None,
    run_dir: Path | None = None,
    is_fork: bool = False,
    replaces: bool = False,
    reads_images: bool = True,
    progress: Progress = no_progress,
) -> Report:
    """Return everything that can be found without loading a model. Only headers, file lists and captions are read.

    `resume_from` is the backup, the run's folder or the workspace that the run is to be resumed from, if any.
    `approved_code` are hashes of the user's own code that may run; by default those approved on this machine.
    `datasets` are the datasets of this config if they are already scanned; otherwise they are scanned here. The report
    contains them. `run_dir` is the folder of a run that is being resumed, for a caller that has already found its
    backup. With `is_fork` a new run continues from there, so the result of the other run stays. With `replaces` the
    user agreed to replace what is at the destination of the result. Without `reads_images` nothing in the folders of
    images is looked at.
    `progress` is called during the scans, and while the passes of a model of a new shape are traced.
    """
    model = kind_of_model(config)
    config = without_lacking_parts(config, model)
    problems = problems_of(config)
    problems += problems_of_devices(config)
    problems += problems_of_packages(config)
    problems += problems_of_ranks(config)
    problems += problems_of_graphs(config)
    problems += problems_of_speed(config)
    is_new = resume_from is None and run_dir is None
    backup = None if resume_from is None else _backup_at(resume_from)
    if resume_from is not None:
        run_dir = backup.run_dir if backup is not None else None
    problems += problems_of_places(config, own_run=None if is_fork else run_dir, replaces=replaces)
    problems += problems_of_caption_settings(config)
    problems += problems_of_captions_files(config)
    problems += problems_of_model(config, model)
    problems += problems_of_vaes(config)
    problems += problems_of_distilled(config)
    trace_unknown(config, progress)  # of what the checks below estimate
    problems += problems_of_part_files(config)
    problems += problems_of_separate_parts(config, model)
    problems += problems_of_training_adapter(config)
    problems += problems_of_sampling_model(config)
    problems += problems_of_sample_images(config)
    problems += problems_of_sample_sides(config)
    start_copy = existing_start_copy(run_dir) if run_dir is not None else None
    problems += problems_of_start(config, has_copy=None if is_new else start_copy is not None)
    problems += problems_of_embeddings(config, is_new=is_new)
    problems += problems_of_prediction(config, model)
    approved = approved_hashes() if approved_code is None else approved_code
    # The rules of the settings have already reported an invalid function name.
    of_reward_models = [p for p in problems_of_reward_models(config, approved) if p not in problems]
    if reads_images:  # of several processes the main one tries the servers
        of_reward_models += [p for p in problems_of_reward_servers(config, approved) if p not in problems]
    problems += of_reward_models
    problems += problems_of_perceptual(config)
    if resume_from is not None:
        problems += problems_of_resume(config, resume_from)
    problems += problems_of_other_runs(config, run_dir)
    config = with_local_folders(config)
    concept_problems = dict(problems_of_concept_folders(config))
    problems += concept_problems.values()
    is_downloaded = all(p.severity != "info" for p in concept_problems.values())
    if not reads_images or not is_downloaded:
        return Report(tuple(problems), None)
    readable = _without(config, concept_problems.keys())  # the other concepts are still checked: all problems at once
    try:
        scanned = datasets or datasets_of(readable, partial(progress, "scanning"))
    except OSError as error:
        problems.append(
            Problem(
                "concepts",
                f"A folder of images cannot be read: {plain_reason(error, names_file=True)}.",
                advice="Check that it exists.",
            )
        )
        return Report(tuple(problems), None)
    training, validation, plans = scanned.training, scanned.validation, scanned.plans
    problems += problems_of_images(readable, training, validation)
    problems += problems_of_image_sides(readable, training, validation)
    captions = CaptionsReport()
    if not trains_on_pixels(config):  # otherwise no caption is used
        problems += problems_of_missing_captions(readable, training, validation)
        captions = report_on_captions(readable, training, validation)
    problems += captions.problems
    problems += problems_of_companions(readable, training)
    problems += problems_of_length(readable, training, plans)
    total_steps = plans.total_steps(config.training.epochs)
    problems += problems_of_validation(config, total_steps=total_steps)
    problems += problems_of_measuring(readable, validation, training, total_steps=total_steps)
    budget = known_budget(readable, sizes_of(training, validation), start_copy)
    memory_of = cache(gpu_memory)  # the driver may take its time
    if budget is not None:
        problems += problems_of_estimates(
            budget, training, validation, total_steps=total_steps, is_new=is_new, memory_of=memory_of, progress=progress
        )
    if concept_problems:
        return Report(tuple(problems), None)
    preview = _preview(config, model, training, validation, plans, budget)
    preview = replace(preview, done_steps=backup.step if backup is not None else 0)
    if budget is not None:
        free_bytes = free_here(config, memory_of=memory_of) if automatic_parts(config) else None
        placed = budget if free_bytes is None else on_card(budget, free_bytes)
        num_steps = max(0, total_steps - preview.done_steps)
        figures = figures_of(placed, num_steps=num_steps, memory_of=memory_of)
        preview = replace(preview, memory=describe_memory(budget, placed), figures=figures)
    reward_models = tuple(
        p.message for p in of_reward_models if p.severity == "info" and p.path.startswith(_REWARD_MODELS)
    )
    return Report(tuple(problems), replace(preview, reward_models=reward_models, captions=captions.findings), scanned)


def _backup_at(place: Path) -> BackupInfo | None:
    """Return the backup that a backup, a run's folder or a workspace refers to; None without one."""
    try:
        return find_backup(place)
    except DarkroomError:  # the check of the backup reports it
        return None


def _without(config: Config, concepts: Collection[int]) -> Config:
    kept = (c.model_copy(update={"enabled": c.enabled and i not in concepts}) for i, c in enumerate(config.concepts))
    return config.model_copy(update={"concepts": tuple(kept)})


def _preview(
    config: Config,
    model: FileKind | None,
    training: Dataset,
    validation: Dataset,
    plans: EpochPlans,
    budget: Budget | None,
) -> Preview:
    skipped = (*training.skipped, *validation.skipped)
    return Preview(
        num_images=sum(e.image.has_image for e in training.examples),
        num_prompts=sum(not e.image.has_image for e in training.examples),
        num_pairs=sum(e.image.rejected is not None for e in training.examples),
        num_validation_images=len(validation.examples),
        num_without_caption=sum(not e.image.captions for e in training.examples),
        buckets=tuple((str(size), count) for size, count in training.bucket_counts.items()),
        skipped=tuple((str(s.path), s.reason) for s in skipped if not (s.setting or s.is_normal)),
        steps_first_epoch=plans.num_steps(0),
        total_steps=plans.total_steps(config.training.epochs),
        model=_describe_model(model, budget),
        passes=" ".join(filter(None, (describe_passes(config), describe_choices(config, plans)))),
        trained=trained_parts(budget) if budget else (),
    )


def _describe_model(model: FileKind | None, budget: Budget | None) -> str:
    if budget is not None and (download := describe_download(budget)):
        return download
    return model.sentence if model is not None and model.is_model else ""


def describe_passes(config: Config) -> str:
    """Return the passes of a step and how many denoising steps take as long; empty for a method that only denoises."""
    if rollout_of(config) is None and learns_from(config) != "pairs":
        return ""
    passes = step_passes(config)
    denoiser = next(p.label for p in config.family.parts if p.role == "denoiser")
    times = passes.times_denoising(config.training.batch_size * config.training.accumulation_steps)
    sampled = f" samples {count(round(passes.num_sampled), 'image')} and" if passes.num_sampled >= 1 else ""
    return (
        f"A step{sampled} passes {_number(passes.without_gradient)} images through the {denoiser} without gradient and "
        f"{_number(passes.with_gradient)} with it, which takes about {_number(times)} times as long as a "
        "step of the method Denoising."
    )


def describe_choices(config: Config, plans: EpochPlans) -> str:
    """Return how many choices a person makes; empty for a run without choices by a person."""
    if rollout_of(config) is None or trains_on_reward(config):
        return ""
    num_choices = plans.accumulation_groups(0).num_samples
    epochs = config.training.epochs
    whole = "" if epochs == 1 else f" of the first of {count(epochs, 'epoch')}"
    return f"You make {count(num_choices, 'choice')}, one for each prompt{whole}."


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"
