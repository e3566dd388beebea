"""The job that writes the config's JSON Schema, a document of every setting, or a table of the optimizers."""

from __future__ import annotations

import json
from typing import Annotated

from modules.config.documents import json_schema, optimizers_document, settings_document
from modules.settings.field import Section, Setting
from modules.system.atomic import write_text
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.spec import Argument, JobSpec


class SchemaSettings(Section):
    """The document to write, and its file."""

    markdown: Annotated[bool, Setting("Settings", "Print a Markdown document of every setting instead.")] = False
    optimizers: Annotated[bool, Setting("Optimizers", "Print a Markdown table of the optimizers instead.")] = False
    output: Annotated[
        str,
        Setting("Write to", "Write to a file instead of standard output.", path_kind="save"),
        Argument(metavar="FILE"),
    ] = ""


def _only_one(settings: SchemaSettings) -> None:
    if settings.markdown and settings.optimizers:
        raise DarkroomError("Both documents are chosen.", advice="Choose --markdown or --optimizers.")


SCHEMA = JobSpec(
    "schema",
    "Schema",
    "Print the config's JSON Schema, for completion in editors; --markdown: every setting.",
    SchemaSettings,
    "trainer.jobs.schema:schema",
    check=_only_one,
    shows="text",
)


def schema_text() -> str:
    """Return the JSON Schema as the text of its file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def schema(settings: SchemaSettings, _job: Job) -> JobFinished:
    """Return the document, or write it to a file. Raises OSError."""
    make = (
        optimizers_document if settings.optimizers else settings_document if settings.markdown else schema_text
    )  # fmt: skip
    if not settings.output:
        return JobFinished("Written.", text=make())
    write_text(from_root(settings.output), make())
    return JobFinished("Written.")
