"""The job that measures the largest micro-batch that fits, and a learning rate, on a few real steps."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.rewards.user_code_file import approved_hashes
from modules.settings.field import Setting
from modules.system.factories import load_factory
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.config import (
    AllowAddress,
    AllowCode,
    AllowCodeHash,
    ConfigSettings,
    ResultsFolder,
    allowed_code,
    new_results_folder,
)
from trainer.jobs.spec import Argument, JobSpec
from trainer.launch import import_engine

_WHAT = {"both": "Both", "batch": "Batch size", "rate": "Learning rate"}


class ProbeSettings(ConfigSettings):
    """The config, and what to measure of it."""

    what: Annotated[Literal["batch", "rate", "both"], Setting("Measure", "What to measure.", choice_labels=_WHAT)] = (
        "both"
    )
    steps: Annotated[int, Ge(12), Le(1000), Setting("Steps of the sweep", "Steps of the sweep of learning rates.")] = 60
    lowest: Annotated[
        float | None, Gt(0), Setting("Lowest rate", "The lowest learning rate."), Argument("--from", "RATE")
    ] = None
    highest: Annotated[
        float | None, Gt(0), Setting("Highest rate", "The highest learning rate."), Argument("--to", "RATE")
    ] = None
    max_batch: Annotated[int, Ge(1), Setting("Largest batch", "The largest batch to try.")] = 128
    out: ResultsFolder = ""
    allow_code: AllowCode = False
    allow_code_hash: AllowCodeHash = ()
    allow_address: AllowAddress = ()


PROBE = JobSpec(
    "probe",
    "Probe",
    "Measure the largest batch that fits, and a learning rate.",
    ProbeSettings,
    "trainer.jobs.probe:probe",
    "Trains a few steps with growing batches, and with a rising learning rate (a range test, Smith 2017), and "
    "writes plots and points.json. The config, its output and its runs stay as they are; its caches are filled.",
)


def probe(settings: ProbeSettings, job: Job) -> JobFinished:
    """Measure, and write the plots and points. Raises DarkroomError for a config that cannot be probed."""
    config = settings.load().config
    import_engine(in_window=False)
    request = load_factory("trainer.probe.search:ProbeRequest")(
        config,
        from_root(settings.out) if settings.out else new_results_folder(config, "probes", datetime.now()),
        wants_batch=settings.what in ("batch", "both"),
        wants_rate=settings.what in ("rate", "both"),
        num_steps=settings.steps,
        lowest_rate=settings.lowest or 0.0,
        highest_rate=settings.highest or 0.0,
        max_batch=settings.max_batch,
        approved_code=frozenset(approved_hashes() | allowed_code(config, settings)),
    )
    result: JobFinished = load_factory("trainer.probe.search:probe")(request, job)
    return result
