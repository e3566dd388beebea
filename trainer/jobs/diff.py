"""The job that lists how two configs differ, or one from the defaults; or two runs, or one from the last good run."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel

from modules.config.compare import differing_paths
from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.settings.field import Setting
from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from modules.system.problem import count, shorten
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.config import ConfigSettings, read_config
from trainer.jobs.spec import Argument, JobSpec, positional
from trainer.run_folder.records import is_run, read_record
from trainer.run_folder.since_last_good import compare_with, since_last_good

_KEPT = "unknown."  # settings of other programs
ABSENT = object()
"""The value of a path that a config does not have."""


class DiffSettings(ConfigSettings):
    """The two configs, or two runs."""

    config: Annotated[
        str,
        Setting(
            "Config",
            "A config file, the name of a preset such as '#demo', or the folder of a run: of runs also versions, "
            "device, models, images and pace are compared.",
        ),
        positional("CONFIG"),
    ] = ""
    other: Annotated[
        str,
        Setting(
            "Other",
            "A config file, a preset or a run to compare with; by default the defaults, for a run the last finished "
            "one before it.",
        ),
        Argument(metavar="OTHER", is_positional=True),
    ] = ""
    json_text: Annotated[bool, Setting("JSON", "Print the differences as JSON."), Argument("--json")] = False


DIFF = JobSpec(
    "diff",
    "Differences",
    "List what differs between configs, or between runs since the last good one.",
    DiffSettings,
    "trainer.jobs.diff:diff",
    shows="text",
)


def diff(settings: DiffSettings, _job: Job) -> JobFinished:
    """Return the differences as a text. Raises DarkroomError for a config that cannot be read."""
    run_dir = from_caller(settings.config)
    if is_run(run_dir):
        if not settings.other or is_run(from_caller(settings.other)):
            return _diff_runs(run_dir, settings)
        settings = settings.model_copy(update={"config": str(run_dir / "config.json")})
    config = settings.load().config
    other_run = from_caller(settings.other) / "config.json" if settings.other else None
    is_other_run = other_run is not None and is_run(other_run.parent)
    other = read_config(str(other_run) if is_other_run else settings.other).config if settings.other else Config()
    rows = differences(config, other)
    if settings.json_text:
        data = [dict(zip(("path", "value", "other"), map(_or_null, row), strict=True)) for row in rows]
        return JobFinished("Compared.", text=json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    name = settings.other or "the defaults"
    kept = [row for row in rows if row[0].startswith(_KEPT)]
    more = f"Also {count(len(kept), 'kept setting')} of other programs, with no effect (--json).\n" if kept else ""
    lines = (
        f"{path} = {shorten(_text_of(value), max_chars=100)}   ({name}: {shorten(_text_of(before), max_chars=60)})\n"
        for path, value, before in rows
        if not path.startswith(_KEPT)
    )
    return JobFinished("Compared.", text=("".join(lines) or f"No setting differs from {name}.\n") + more)


def _diff_runs(run_dir: Path, settings: DiffSettings) -> JobFinished:
    """Return how a run differs from another one. Raises DarkroomError if there is no run to compare with."""
    other = from_caller(settings.other) if settings.other else None
    since = compare_with(read_record(other), run_dir) if other is not None else since_last_good(run_dir)
    if since is None:
        raise DarkroomError(
            f"No earlier run in the workspace of {run_dir.name} has finished, so there is nothing to compare it with.",
            advice="Name another run behind it.",
        )
    if settings.json_text:
        rows = [asdict(difference) for difference in since.differences]
        text = json.dumps({"run": run_dir.name, "other": since.good.name, "differences": rows}, indent=2)
        return JobFinished("Compared.", text=text + "\n")
    text = "".join(f"{d.topic:8} {d.text}\n" for d in since.differences)
    head = f"{run_dir.name} compared with {since.good.name}:\n"
    return JobFinished("Compared.", text=head + (text or "Nothing that is recorded differs.\n"))


def differences(one: Config, other: Config) -> list[tuple[str, Any, Any]]:
    """Return each path in which two configs differ, with both values as JSON has them; ABSENT for none."""
    return [(path, _value_at(one, path), _value_at(other, path)) for path in differing_paths(one, other)]


def _value_at(config: Config, path: str) -> Any:
    try:
        value = get_path(config, path)
    except KeyError:
        return ABSENT
    return [v.model_dump() if isinstance(v, BaseModel) else v for v in value] if isinstance(value, tuple) else value


def _text_of(value: Any) -> str:
    return "nothing" if value is ABSENT else json.dumps(value, ensure_ascii=False)


def _or_null(value: Any) -> Any:
    return None if value is ABSENT else value
