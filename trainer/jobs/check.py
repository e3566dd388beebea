"""The job that lists the errors and warnings of a config, and previews its run, without loading a model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated

from modules.config.schema import Config
from modules.config.usage import data_in_use
from modules.data.datasets import Datasets
from modules.data.doctor.finding import printable
from modules.data.plan_table import describe_buckets, describe_images, plan_rows
from modules.data.versions import ImageVersions
from modules.rewards.user_code_file import approved_hashes
from modules.settings.field import Setting
from modules.system.paths import from_root
from modules.system.problem import Problem, about, count, describe_data
from modules.system.remedies import remedies_of
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.config import CodeSettings, ConfigSettings, allowed_code, describe
from trainer.jobs.fit import FitSettings, fit_as_json, fit_config, save_changed
from trainer.jobs.spec import Argument, JobSpec
from trainer.preflight import Report
from trainer.preflight import check as check_config

_MAX_CAPTIONS = 100
_MAX_SKIPPED = 1000


class CheckSettings(ConfigSettings):
    """The config, and the lists to print about its run."""

    code: CodeSettings = CodeSettings()
    card: FitSettings = FitSettings()
    resume: Annotated[
        str,
        Setting(
            "Resume",
            "Also report what prevents resuming from this backup, run's folder or workspace.",
            path_kind="folder",
        ),
    ] = ""
    images: Annotated[bool, Setting("Images", "Also list bucket, scale and crop of every image.")] = False
    layers: Annotated[bool, Setting("Layers", "Also list every layer that is trained.")] = False
    json_text: Annotated[bool, Setting("JSON", "Print the report as JSON."), Argument("--json")] = False


CHECK = JobSpec(
    "check",
    "Check",
    "List the errors and warnings of a config, and what the run would do.",
    CheckSettings,
    "trainer.jobs.check:check",
    shows="text",
)


def check(settings: CheckSettings, job: Job) -> JobFinished:
    """Return the report as a text. Raises DarkroomError for a config that cannot be read."""
    loaded = settings.load()
    report = check_config(
        loaded.config,
        resume_from=from_root(settings.resume) if settings.resume else None,
        approved_code=approved_hashes() | allowed_code(loaded.config, settings.code),
        progress=job.progress,
    )
    fit, table = None, ""
    if settings.card.fit:
        fit, table = fit_config(loaded.config, settings.card, progress=job.progress)
    elif settings.card.save:
        table = f"{save_changed(loaded.config, settings.card)}\n"
    code = 2 if report.errors else 0
    if settings.json_text:
        data = {
            "was_migrated": loaded.was_migrated,
            "load": [{**p.to_json(), "kind": _kind(p, loaded.config)} for p in loaded.problems],
            "problems": [p.to_json() for p in report.problems],
            "preview": asdict(report.preview) if report.preview else None,
            **({"fit": fit_as_json(fit)} if fit else {}),
        }
        return JobFinished("Checked.", text=json.dumps(data, indent=2) + "\n", code=code)
    lines = [f"{describe(problem)}\n" for problem in (*loaded.problems, *report.problems)]
    lines += [f"{remedy.label.rstrip('…')}: {remedy.command}\n" for remedy in remedies_of(report.problems)]
    lines.append(_preview(report))
    if settings.layers and report.preview is not None:
        lines += [f"  {layer}\n" for part in report.preview.trained for layer in part.layers]
    if report.datasets is not None:
        plan = plan_lines(
            report.datasets,
            is_cached=data_in_use(loaded.config).latent_cache,
            epochs=loaded.config.training.epochs,
            every_image=settings.images,
        )
        lines += [f"{line}\n" for line in plan]
    return JobFinished("Checked.", text="".join((*lines, table)), code=code)


def _kind(problem: Problem, config: Config) -> str:
    """Return the fate of a value of the file: "kept" although unknown, "replaced" by another, or "migrated"."""
    if problem.path in config.unknown:
        return "kept"
    return "migrated" if problem.severity == "info" else "replaced"


def _preview(report: Report) -> str:
    preview = report.preview
    if preview is None:
        return ""
    sizes = ", ".join(f"{number:,} at {size}" for size, number in preview.buckets)
    words = describe_data(preview.num_images, preview.num_prompts, preview.num_pairs)
    images = f"{words} ({sizes})" if sizes else "No images"
    trained = "".join(f"{part}\n" for part in preview.trained)
    model, passes, memory = (f"{line}\n" if line else "" for line in (preview.model, preview.passes, preview.memory))
    time = f", roughly {about(preview.figures.seconds)}" if preview.figures is not None else ""
    return (
        f"{model}{images}, {preview.num_validation_images} for validation.\n"
        f"{count(preview.steps_first_epoch, 'step')} in the first epoch, {preview.total_steps:,} in total{time}.\n"
        f"{trained}{passes}{memory}{_list_under('Skipped files', preview.skipped, _MAX_SKIPPED)}"
        f"{_list_under('Captions', preview.captions, _MAX_CAPTIONS)}"
    )


def _list_under(title: str, findings: Sequence[tuple[str, str]], max_lines: int) -> str:
    """Return files and their problems, one per line under a title; nothing without any."""
    lines = [f"  {printable(file)}: {printable(what)}\n" for file, what in findings[:max_lines]]
    more = len(findings) - max_lines
    rest = f"  and {more:,} more; --json lists all\n" if more > 0 else ""
    return f"{title}:\n{''.join(lines)}{rest}" if findings else ""


def plan_lines(datasets: Datasets, *, is_cached: bool, epochs: int, every_image: bool) -> list[str]:
    """Return a line for each bucket of the training images, and with `every_image` one for each version of an image.

    The numbers count a run of `epochs` epochs.
    """
    versions = ImageVersions(datasets.training, datasets.settings.run_seed, is_cached=is_cached)
    rows = plan_rows(datasets.training, datasets.plans, versions, epochs=epochs)
    return [*describe_buckets(rows), *_left_out(datasets), *(describe_images(rows) if every_image else [])]


def _left_out(datasets: Datasets) -> list[str]:
    """Return a line with the images of the first epoch's partial batches, where these are not trained in it."""
    numbers = {s.example for s in datasets.plans.left_out(0)}
    names = sorted(datasets.training.examples[n].image.path.name for n in numbers)
    if not names:
        return []
    is_merged = datasets.settings.partial_batches == "merge"
    waits, is_dropped = ("waits", "is dropped") if len(names) == 1 else ("wait", "are dropped")
    fate = f"{waits} for a later epoch" if is_merged else f"{is_dropped} from epoch 1"
    return [f"  In partial batches, {count(len(names), 'image')} {fate}: {', '.join(names)}"]
