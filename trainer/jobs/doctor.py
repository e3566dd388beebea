"""The job that finds probable mistakes in the images and captions of a config, before a run learns them."""

from __future__ import annotations

from typing import Annotated

from modules.data.doctor.page import as_html
from modules.data.doctor.report import as_json, as_table
from modules.settings.field import Setting
from modules.system.atomic import write_text
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.config import ConfigSettings
from trainer.jobs.spec import Argument, JobSpec
from trainer.preflight.doctor import examine, thumbnails_of


class DoctorSettings(ConfigSettings):
    """The config, and how the findings are printed."""

    json_text: Annotated[bool, Setting("JSON", "Print the findings as JSON."), Argument("--json")] = False
    html: Annotated[str, Setting("Page", "Also write a page with thumbnails.", path_kind="save")] = ""


DOCTOR = JobSpec(
    "doctor",
    "Dataset doctor",
    "Find the images and captions that are probably wrong.",
    DoctorSettings,
    "trainer.jobs.doctor:doctor",
    "Decodes every image once and lists what is probably wrong: unreadable, tiny, blurred, dark and nearly equal "
    "images, letterbox bars, missing and duplicate captions, unusual tags, buckets and concepts out of balance. "
    "Nothing is changed. The exit code is 1 if a file cannot be read; warnings and notes do not count.",
)


def doctor(settings: DoctorSettings, job: Job) -> JobFinished:
    """Return the findings as a text. Raises OSError if the page cannot be written."""
    report = examine(settings.load().config, job.progress)
    numbers = {
        "num_images": report.num_images,
        "num_validation_images": report.num_validation_images,
        "num_prompts": report.num_prompts,
    }
    if settings.html:
        thumbnails = thumbnails_of(report.findings, job.progress)
        write_text(from_root(settings.html), as_html(report.findings, thumbnails, title=settings.config, **numbers))
    text = (as_json if settings.json_text else as_table)(report.findings, **numbers)
    return JobFinished("Examined.", text=text, code=1 if report.has_errors else 0)
