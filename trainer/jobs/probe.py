"""The jobs that measure the largest micro-batch and a learning rate on real steps, and that self-test a model."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le

from modules.config.schema import Config
from modules.data.images import BrokenImageError, open_image
from modules.rewards.user_code_file import approved_hashes
from modules.settings.field import Setting
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.config import (
    CodeSettings,
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

    code: CodeSettings = CodeSettings()
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
        approved_code=frozenset(approved_hashes() | allowed_code(config, settings.code)),
    )
    result: JobFinished = load_factory("trainer.probe.search:probe")(request, job)
    return result


# The job that tests a model, and the settings of a config, on one image.


class SelfTestSettings(ConfigSettings):
    """The config, and the image to learn."""

    code: CodeSettings = CodeSettings()
    image: Annotated[
        str, Setting("Image", "The image to memorize.", path_kind="file", empty_means="the first of the config")
    ] = ""
    caption: Annotated[str, Setting("Caption", "What the image shows.")] = "a photo"
    steps: Annotated[int, Ge(5), Le(2000), Setting("Steps", "Steps of each of the two trials.")] = 60
    out: ResultsFolder = ""


SELF_TEST = JobSpec(
    "self-test",
    "Self-test",
    "Find out whether the weights, the settings or the program are wrong when a run does not learn.",
    SelfTestSettings,
    "trainer.jobs.probe:self_test",
    "Measures the weights, the VAE and whether the model follows prompts, then trains two short runs on one image, "
    "with settings that are known to work and with the config's. If only these fail, it tries which of them is "
    "wrong. It writes samples and self_test.json.",
)


def self_test(settings: SelfTestSettings, job: Job) -> JobFinished:
    """Carry out the self-test. Raises DarkroomError for a config that has no image, or cannot be tested."""
    config = settings.load().config
    image = settings.image or _first_image(config)
    _require_image(from_root(image))
    import_engine(in_window=False)
    request = load_factory("trainer.probe.self_test:SelfTestRequest")(
        config,
        from_root(image),
        settings.caption,
        from_root(settings.out) if settings.out else new_results_folder(config, "self_tests", datetime.now()),
        settings.steps,
        frozenset(approved_hashes() | allowed_code(config, settings.code)),
    )
    result: JobFinished = load_factory("trainer.probe.self_test:self_test")(request, job)
    return result


def _require_image(path: Path) -> None:
    try:
        with open_image(path) as image:
            image.load()
    except BrokenImageError as error:
        raise DarkroomError(f"{path}: {error.reason}.", advice="Choose another image with --image FILE.") from None


def _first_image(config: Config) -> str:
    examples = load_factory("trainer.data.datasets:datasets_of")(config).training.examples
    files = (str(e.image.path) for e in examples if e.image.path.is_file())  # no member of an archive
    image = next(files, "")
    if not image:
        raise DarkroomError("The config has no image file to test with.", advice="Give one with --image FILE.")
    return image
