"""The config that a job or a run works on: its file or preset, changes of its settings, and the code it may run.

Also the job that writes the schema of configs, or documents of the settings.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any

from modules.config.codec import LoadedConfig
from modules.config.documents import families_document, json_schema, optimizers_document, settings_document
from modules.config.imports.any_file import load_any
from modules.config.list_files import LISTS
from modules.config.other_family import start_of, train_on
from modules.config.presets import Preset, list_presets, preset_for, readable_configs
from modules.config.records import record_at
from modules.config.schema import Config
from modules.families.registry import FAMILIES, family_labels
from modules.rewards.address import parse_address
from modules.settings.edit import get_path, set_path
from modules.settings.field import Section, Setting, records_of
from modules.system.atomic import write_text
from modules.system.errors import DarkroomError
from modules.system.hardware import gpu_memory
from modules.system.paths import as_config_path, from_caller, from_root
from modules.system.problem import Problem
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.spec import Argument, JobSpec, positional
from trainer.run.allowed_code import code_of

Changes = Annotated[
    tuple[str, ...],
    Setting(
        "Changes",
        "Change one setting, for example training.epochs=20; can be repeated. Files and folders are relative to the "
        "folder in which the command is given, as those of all other options.",
    ),
    Argument("--set", "PATH=VALUE"),
]
PresetName = Annotated[
    str,
    Setting(
        "Preset",
        "Use this preset instead of the defaults for settings the config leaves out; with --family, the preset of that "
        "family that the settings come from.",
    ),
    Argument(metavar="NAME"),
]
FamilyName = Annotated[
    str,
    Setting(
        "Family",
        "Train on another model family, such as anima: concepts, captions, sample prompts, folders, epochs and "
        "resolution stay, the rest comes from that family's preset for the memory of this computer's card. Lists what "
        "is left out.",
    ),
    Argument(metavar="NAME"),
]
ResultsFolder = Annotated[
    str, Setting("Results in", "The folder of the results; by default in the workspace.", path_kind="folder")
]


_NEXT_TO_CONFIG = tuple(kind.name_path for kind in LISTS)  # names relative to the config's file


class CodeSettings(Section):
    """The code files of a config that may run, and the servers that it may send images to."""

    allow_code: Annotated[
        bool,
        Setting(
            "Allow code",
            "Allow the code files that the config names, such as a custom reward; they run with your permissions.",
        ),
    ] = False
    allow_code_hash: Annotated[
        tuple[str, ...],
        Setting(
            "Allowed hashes",
            "Allow only code files with this SHA-256 sum, as the window does for its child processes; can be repeated.",
        ),
        Argument(metavar="SHA256"),
    ] = ()
    allow_address: Annotated[
        tuple[str, ...],
        Setting(
            "Allowed addresses",
            "Allow sending images and prompts to the reward server at this address, on another computer; can be "
            "repeated.",
        ),
        Argument(metavar="ADDRESS"),
    ] = ()


class ConfigSettings(Section):
    """The config of a job."""

    config: Annotated[
        str, Setting("Config", "A config file, or the name of a preset such as '#demo'."), positional("CONFIG")
    ] = ""
    preset: PresetName = ""
    family: FamilyName = ""
    changes: Changes = ()

    def load(self) -> LoadedConfig:
        """Return the config with the problems of its file. Raises DarkroomError if it cannot be read."""
        return read_config(self.config, self.changes, preset=self.preset, family=self.family)


def new_results_folder(config: Config, kind: str, now: datetime) -> Path:
    """Return the folder for the results of a job, by its kind and the time, in the workspace of a config."""
    return from_root(config.general.workspace_dir) / kind / f"{now:%Y%m%d-%H%M%S}"


def allowed_code(config: Config, settings: CodeSettings) -> frozenset[str]:
    """Return the allowed hashes: the given ones, the addresses', and with --allow-code the current code files'.

    Raises DarkroomError for an invalid address.
    """
    current = frozenset(code.digest for code in code_of(config)) if settings.allow_code else frozenset()
    addresses = frozenset(parse_address(text).digest for text in settings.allow_address)
    return current | addresses | frozenset(settings.allow_code_hash)


def with_hashes(arguments: Sequence[str], allowed: Collection[str]) -> list[str]:
    """Return a command line that allows the files of these hashes instead of whatever the files contain later."""
    flag = "--allow-code"
    kept = [a for a in arguments if a != flag]
    return [*kept, *(f"{flag}-hash={digest}" for digest in sorted(allowed))] if len(kept) < len(arguments) else kept


def read_config(name: str, changes: Sequence[str] = (), *, preset: str = "", family: str = "") -> LoadedConfig:
    """Return the config of a file or a preset: the defaults, over them `preset`, the file, and the changes.

    With a `family` the file's run is moved to it, with `preset` or the best one for this computer's card, before the
    changes. Raises DarkroomError if there is no such file, preset or family, or if a change is not valid.
    """
    path = from_caller(name)
    if path.is_dir():
        raise DarkroomError(f"{path} is a folder, not a config file.", advice="Give the path of a config file in it.")
    over = _preset(preset).load().config if preset and not family else None
    loaded = load_any(path, over=over) if path.is_file() else _preset(name, path).load(over=over)
    fatal = [p for p in loaded.problems if p.severity == "error" and not p.path]
    if fatal:
        raise DarkroomError(str(fatal[0]))
    loaded = _on_family(loaded, family, preset) if family else loaded
    return LoadedConfig(apply_changes(loaded.config, changes), loaded.problems, loaded.was_migrated)


def _on_family(loaded: LoadedConfig, family: str, preset_name: str) -> LoadedConfig:
    """Return a config moved to a family, with the notes on what was left out."""
    if family not in FAMILIES:
        raise DarkroomError(
            f"There is no model family {family!r}.", advice=f"Families are: {', '.join(family_labels())}."
        )
    if family == loaded.config.family.name and not preset_name:
        return loaded
    if preset_name:
        preset: Preset | None = _preset(preset_name)
    else:
        card = gpu_memory("auto")
        preset = preset_for(family, loaded.config, card.nominal_gb if card else 0, readable_configs(list_presets()))
    start = preset.load().config if preset else start_of(family)
    if start.family.name != family:
        raise DarkroomError(
            f"The preset {preset_name} is for {start.family.label}, not for {FAMILIES[family].label}.",
            advice="Choose a preset of that family, or leave --preset out.",
        )
    moved, name = train_on(loaded.config, start), preset.name if preset else "the defaults"
    note = Problem("model.family", f"Moved from {loaded.config.family.label} to {start.family.label}: {name}.", "info")
    return LoadedConfig(moved.config, [*loaded.problems, note, *moved.notes], loaded.was_migrated)


def _preset(name: str, path: Path | None = None) -> Preset:
    """Return the preset of a name, with or without its "#"; `path` is the config file that was looked for first."""
    preset = next((p for p in list_presets() if name in (p.name, p.name.lstrip("#"))), None)
    if preset is None:
        message = f"There is no file {path} and no preset {name!r}." if path else f"There is no preset {name!r}."
        raise DarkroomError(message, advice=_preset_advice(name, is_preset=path is None or name.startswith("#")))
    return preset


def _preset_advice(name: str, *, is_preset: bool) -> str:
    """Return presets with a name similar to an unknown one; without any, all of them if a preset was meant."""
    names = [preset.name for preset in list_presets()]
    if near := get_close_matches(name, names):
        return _guess(near).strip()
    return f"Presets are: {', '.join(names)}." if is_preset else "Check the path, or name a preset, such as #demo."


def apply_changes(config: Config, changes: Sequence[str]) -> Config:
    """Return the config with `path=value` changes; a list may be written without brackets, as in 512, 768.

    Files and folders in them are relative to the caller's folder, and a model is one there, if it exists; the names of
    files with lists stay relative to the config's file. Raises DarkroomError for a change that is not valid.
    """
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals:
            raise DarkroomError(f"--set {change} has no value.", advice="Write it as --set training.epochs=20.")
        path = path.strip()
        try:
            value = _value(text)
            if isinstance(get_path(config, path), tuple) and isinstance(value, str | int):
                value = [_value(part.strip()) for part in str(value).split(",") if part.strip()]
            config, problems = set_path(config, path, _with_places(config, path, value))
        except KeyError as error:
            raise DarkroomError(f"--set {change}: {error.args[0]}", advice=_advice(path)) from error
        if problems:
            raise DarkroomError(f"--set {change}: {problems[0].message}")
    return config


def _with_places(config: Config, path: str, value: Any) -> Any:
    """Return a value of a setting with its paths as a config stores them, also inside of lists and objects."""
    if isinstance(value, dict):
        return {key: _with_places(config, f"{path}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_places(config, f"{path}.{index}", inner) for index, inner in enumerate(value)]
    record = record_at(config, path)
    kind = record.setting.path_kind if record else ""
    if not kind or path in _NEXT_TO_CONFIG or not isinstance(value, str) or not value.strip() or "://" in value:
        return value
    place = from_caller(value)
    return value if kind == "model" and not place.exists() else as_config_path(place)


def _advice(path: str) -> str:
    """Return settings with a name similar to an unknown one, and where all settings are listed."""
    paths = [record.path for record in records_of(Config)]
    near = [p for p in paths if p.rpartition(".")[2] == path.rpartition(".")[2]][:3]
    near = near or get_close_matches(path, paths, n=3, cutoff=0.75)
    return f"{_guess(near)}All settings are listed by python -m trainer schema --markdown."


def _guess(near: Sequence[str]) -> str:
    return f"Did you mean {' or '.join(near)}? " if near else ""


def describe(problem: Problem) -> str:
    """Return a problem as a line."""
    return f"{problem.severity.upper():8}{problem}"


def _value(text: str) -> Any:
    """Return the value of a text: parsed if it is JSON, otherwise the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


# The job that writes the config's JSON Schema, a document of every setting, or a table of the optimizers or families.


class SchemaSettings(Section):
    """The document to write, and its file."""

    markdown: Annotated[bool, Setting("Settings", "Print a Markdown document of every setting instead.")] = False
    optimizers: Annotated[bool, Setting("Optimizers", "Print a Markdown table of the optimizers instead.")] = False
    families: Annotated[bool, Setting("Families", "Print a Markdown table of the model families instead.")] = False
    out: Annotated[str, Setting("Write to", "Write to a file instead of standard output.", path_kind="save")] = ""


def _only_one(settings: SchemaSettings) -> None:
    if settings.markdown + settings.optimizers + settings.families > 1:
        raise DarkroomError(
            "Several documents are chosen.", advice="Choose --markdown, --optimizers or --families, one of them."
        )


SCHEMA = JobSpec(
    "schema",
    "Schema",
    "Print the config's JSON Schema, for completion in editors; --markdown: every setting.",
    SchemaSettings,
    "trainer.jobs.config:schema",
    check=_only_one,
    shows="text",
)


def schema_text() -> str:
    """Return the JSON Schema as the text of its file."""
    return json.dumps(json_schema(), indent=1, ensure_ascii=False) + "\n"


def schema(settings: SchemaSettings, _job: Job) -> JobFinished:
    """Return the document, or write it to a file. Raises OSError."""
    documents = (
        (settings.optimizers, optimizers_document),
        (settings.families, families_document),
        (settings.markdown, settings_document),
    )
    make = next((document for is_chosen, document in documents if is_chosen), schema_text)
    if not settings.out:
        return JobFinished("Written.", text=make())
    write_text(from_root(settings.out), make())
    return JobFinished("Written.")
