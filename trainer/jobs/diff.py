"""The job that lists the settings in which two configs differ, or one config from the defaults."""

from __future__ import annotations

import json
from typing import Annotated

from modules.config.compare import differing_paths
from modules.config.schema import Config
from modules.settings.edit import get_path
from modules.settings.field import Setting
from modules.system.problem import cut
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.config import ConfigSettings, read_config
from trainer.jobs.spec import Argument, JobSpec

_ABSENT = "nothing"


class DiffSettings(ConfigSettings):
    """The two configs."""

    other: Annotated[
        str,
        Setting("Other", "A config file or a preset to compare with; by default the defaults."),
        Argument(metavar="OTHER", is_positional=True),
    ] = ""
    json_text: Annotated[bool, Setting("JSON", "Print the differences as JSON."), Argument("--json")] = False


DIFF = JobSpec(
    "diff",
    "Differences",
    "List the settings of a config that differ from another config or the defaults.",
    DiffSettings,
    "trainer.jobs.diff:diff",
    shows="text",
)


def diff(settings: DiffSettings, _job: Job) -> JobFinished:
    """Return the differences as a text. Raises DarkroomError for a config that cannot be read."""
    config = settings.load().config
    other = read_config(settings.other).config if settings.other else Config()
    rows = differences(config, other)
    if settings.json_text:
        data = [{"path": path, "value": value, "other": before} for path, value, before in rows]
        return JobFinished("Compared.", text=json.dumps(data, indent=2, ensure_ascii=False) + "\n")
    name = settings.other or "the defaults"
    lines = (f"{path} = {cut(v, max_chars=100)}   ({name}: {cut(o, max_chars=60)})\n" for path, v, o in rows)
    return JobFinished("Compared.", text="".join(lines) or f"No setting differs from {name}.\n")


def differences(one: Config, other: Config) -> list[tuple[str, str, str]]:
    """Return each path in which two configs differ, with both values as JSON."""
    return [(path, _value_text(one, path), _value_text(other, path)) for path in differing_paths(one, other)]


def _value_text(config: Config, path: str) -> str:
    try:
        value = get_path(config, path)
    except KeyError:
        return _ABSENT
    plain = [v.model_dump() if hasattr(v, "model_dump") else v for v in value] if isinstance(value, tuple) else value
    return json.dumps(plain, ensure_ascii=False, default=str)
