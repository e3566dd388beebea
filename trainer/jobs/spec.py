"""The record of a job, and how its settings are written on a command line.

The settings of a job are one Section. The command line (`trainer/cli/options.py`), the form of the window and the JSON
request to the child process are generated from its field records; nothing repeats a name, a default or a range.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AllowInfNan, ValidationError

from modules.settings.edit import describe, get_path
from modules.settings.field import Section, Setting, records_of
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from trainer.job import Job
from trainer.job_events import JobFinished, JobStopped

SectionT = TypeVar("SectionT", bound=Section)
NOTHING_WRITTEN = "Stopped. Nothing was written."


@dataclass(frozen=True, slots=True)
class Argument:
    """The form of a setting on the command line, attached to its annotation.

    Without one, the setting `to_inpainting` is the option --to-inpainting, whatever section it is in; a switch that is
    on by default also has --no-NAME. `flag` is another name of the option. `metavar` stands for its value in the help;
    files, folders and numbers have one without it.
    With `is_positional` the setting is an argument without a name, in the order of declaration; with `takes_several` a
    list takes all values after one option. A form and a request need a value, too, if `is_required`.
    """

    flag: str = ""
    metavar: str = ""
    is_positional: bool = False
    is_required: bool = False
    takes_several: bool = False


def positional(metavar: str) -> Argument:
    """Return a required argument without a name."""
    return Argument(metavar=metavar, is_positional=True, is_required=True)


@dataclass(frozen=True, slots=True)
class AdapterChoice:
    """An adapter file and its strength."""

    path: str
    strength: Annotated[float, AllowInfNan(False)] = 1.0


LORA, LORA_FILE = "LORA", "FILE[:STRENGTH]"  # the metavars of adapter files

DTYPES: Mapping[str, str] = {"": "As the input", "float16": "float16", "bfloat16": "bfloat16", "float32": "float32"}
Dtype = Annotated[
    Literal["", "float16", "bfloat16", "float32"],
    Setting("Output dtype", "The dtype of the written weights.", choice_labels=DTYPES),
]
ModelDtype = Annotated[
    Literal["", "float16", "bfloat16", "float32", "scaled_float8"],
    Setting(
        "Output dtype",
        "The dtype of the written weights. float8 with scales is for a single file of a flow model's transformer, "
        "which ComfyUI reads: half the size of float16, with a scale for each matrix.",
        choice_labels={**DTYPES, "scaled_float8": "float8 with scales (ComfyUI)"},
    ),
]
Overwrite = Annotated[bool, Setting("Overwrite", "Replace what is at the destination.")]


def _accept(_settings: Any) -> None:
    """Do nothing: each setting by itself is valid."""


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job: its verb, label and help, its settings, and the function that does it.

    `function` names `function(settings, job)`, as "module:function"; it returns a JobFinished or a JobStopped, and may
    raise DarkroomError and OSError. `check(settings)` raises DarkroomError if settings do not fit together. `shows` is
    how the result is shown: "files" reports progress, then what was written; "text" prints a text at once. `stopped` is
    the message if a stop ends it early. For the job's form: `button`, and the name of the setting `input` and the
    `ending` that is added to the name of its file, to propose one for the result. `server` names a function without
    arguments that does requests from standard input one after another, and keeps between them what takes long to load.
    """

    name: str
    label: str
    help: str
    settings: type[Section]
    function: str
    description: str = ""
    check: Callable[[Any], None] = _accept
    shows: Literal["files", "text"] = "files"
    stopped: str = NOTHING_WRITTEN
    button: str = "Start"
    input: str = ""
    ending: str = ""
    server: str = ""

    def run(self, settings: Section, job: Job) -> JobFinished | JobStopped:
        """Do the job. Raises DarkroomError, OSError, and StopRequested if a stop takes effect."""
        self.require_valid(settings)
        result: JobFinished | JobStopped = load_factory(self.function)(settings, job)
        return result

    def require_valid(self, settings: Section) -> None:
        """Raise DarkroomError if a required setting is empty, or if settings do not fit together."""
        for record in records_of(self.settings):
            value = get_path(settings, record.path)
            is_empty = not value.strip() if isinstance(value, str) else not value
            if is_empty and argument_of(self.settings, record.path).is_required:
                raise DarkroomError(f"The field {record.label} is empty.", advice=record.setting.help)
        self.check(settings)


@cache
def argument_of(section: type[Section], path: str) -> Argument:
    """Return how a setting of a section, or of a section in it, is written on the command line."""
    name, _, rest = path.partition(".")
    if rest:
        inner: Any = section.model_fields[name].annotation
        return argument_of(inner, rest)
    metadata = section.model_fields[name].metadata
    return next((m for m in metadata if isinstance(m, Argument)), Argument())


def require_ending(path: Path, ending: str, what: str) -> None:
    """Raise DarkroomError for a name that does not end as files of its format, such as ".png" for "a PNG image"."""
    if path.suffix.lower() != ending:
        raise DarkroomError(f"{path.name} is not a valid name for {what}.", advice=f"End its name in {ending}.")


def validate_settings(section: type[SectionT], values: Mapping[str, Any]) -> SectionT:
    """Return settings of plain values. Raises DarkroomError for a value or a name that is not valid."""
    try:
        return section.model_validate(dict(values))
    except ValidationError as error:
        place = error.errors(include_url=False)[0]["loc"]
        name = str(place[0])
        paths = {".".join(map(str, place[:depth])) for depth in (1, 2)}  # of a setting, or of one in a section
        record = next((record for record in records_of(section) if record.path in paths), None)
        if record is None:
            names = ", ".join(section.model_fields)
            raise DarkroomError(f"There is no setting {name!r}.", advice=f"The settings are: {names}.") from error
        allowed = f"Allowed: {record.allowed}." if record.allowed else ""
        raise DarkroomError(f"{record.label}: {describe(error)}", advice=allowed) from error


def request_line(spec: JobSpec, settings: Section) -> str:
    """Return a request as one line of JSON, for a child process. It contains no secrets: no settings of jobs are."""
    return json.dumps({"job": spec.name, "settings": settings.model_dump(mode="json")})


def request_in(line: str, jobs: Mapping[str, JobSpec]) -> tuple[JobSpec, Section] | None:
    """Return the job and the settings in a line, or None for any other line.

    Raises DarkroomError for an unknown job or invalid settings.
    """
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or not isinstance(data.get("settings"), dict):
        return None
    name = data.get("job")
    if not isinstance(name, str) or name not in jobs:
        raise DarkroomError(f"There is no job {name!r}.", advice=f"The jobs are: {', '.join(jobs)}.")
    return jobs[name], validate_settings(jobs[name].settings, data["settings"])
