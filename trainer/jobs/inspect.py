"""The job that describes a model file from its headers: its kind, the programs that load it, its metadata."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.folder import folder_metadata
from modules.families.kinds.identify import identify_with_header, who_loads
from modules.families.kinds.other_files import BROKEN, UNKNOWN
from modules.families.kinds.record import Loads
from modules.settings.field import Section, Setting
from modules.system.paths import from_root
from trainer.job import Job
from trainer.job_events import JobFinished
from trainer.jobs.spec import Argument, JobSpec, positional

_MAX_CHARS = 100
_MAX_LINE_CHARS = 5_000
_MAX_LINES = 500


class InspectSettings(Section):
    """The file, and how it is described."""

    file: Annotated[
        str,
        Setting("File or folder", "A model, LoRA, VAE or embedding, or a diffusers folder.", path_kind="model"),
        positional("FILE"),
    ] = ""
    json_text: Annotated[bool, Setting("JSON", "Print as JSON, with the complete metadata."), Argument("--json")] = (
        False
    )


INSPECT = JobSpec(
    "inspect",
    "Inspect",
    "Describe a model file or folder and list the programs that load it.",
    InspectSettings,
    "trainer.jobs.inspect:inspect",
    shows="text",
)


def inspect(settings: InspectSettings, _job: Job) -> JobFinished:
    """Return the description as a text."""
    inspection = inspect_file(from_root(settings.file))
    code = 0 if inspection.is_sound else 2
    if not settings.json_text:
        return JobFinished("Inspected.", text="".join(map(_printable, _lines(inspection))), code=code)
    data = {
        **inspection.kind.to_json(),
        "path": str(inspection.path),
        "loads": [x.to_json() for x in inspection.loads],
        "metadata": dict(inspection.metadata),
    }
    return JobFinished("Inspected.", text=json.dumps(data, indent=2) + "\n", code=code)


@dataclass(frozen=True, slots=True)
class Inspection:
    """A file or folder: its kind, the programs that load it, and its metadata."""

    path: Path
    kind: FileKind
    loads: tuple[Loads, ...]
    metadata: Mapping[str, str]

    @property
    def is_sound(self) -> bool:
        """Whether the file can be read and contains no code, or the folder contains a model."""
        is_no_model = self.kind.kind == UNKNOWN.name and self.path.is_dir()
        return self.kind.kind != BROKEN.name and not is_no_model and "code" not in self.kind.facts

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """The facts about it, by their labels."""
        facts = [(name, value) for name, value in self.kind.facts.items() if name != "defect"]  # it is in the sentence
        return tuple((name.replace("_", " "), value) for name, value in facts)

    @property
    def shown_loads(self) -> tuple[Loads, ...]:
        """The programs to show: the main ones, and others that do not load it, for a reason that no main one has."""
        main = {(x.answer, x.note) for x in self.loads if x.is_main}
        return tuple(x for x in self.loads if x.is_main or (x.complete is False and (x.answer, x.note) not in main))


def inspect_file(path: Path) -> Inspection:
    """Return the description of a file or folder, also of a file that cannot be read."""
    kind, header = identify_with_header(path)
    if kind.kind == BROKEN.name and _is_config(path):
        sentence = (
            f"{path.name} is a training config, not a model. Open it as one; the verbs check and diff read it, too."
        )
        return Inspection(path, replace(kind, sentence=sentence, facts={}), (), {})
    metadata = header.metadata if header is not None else folder_metadata(path, kind) if path.is_dir() else {}
    return Inspection(path, kind, tuple(who_loads(header, kind)), metadata)


def _is_config(path: Path) -> bool:
    """Return whether a file is a config of Darkroom, or of a program whose configs are imported."""
    from modules.config.imports.any_file import CONFIG_SUFFIXES, load_any

    is_text = path.is_file() and path.suffix.lower() in CONFIG_SUFFIXES and path.suffix.lower() != ".safetensors"
    return is_text and all(problem.path or problem.severity != "error" for problem in load_any(path).problems)


def _lines(inspection: Inspection) -> list[str]:
    lines = [str(inspection.path), inspection.kind.sentence]
    lines += [f"  {name}: {value}" for name, value in inspection.facts]
    lines += _program_lines(inspection.shown_loads)
    metadata = inspection.metadata
    if metadata:
        lines += ["", "Metadata"]
        lines += [f"  {_short(name)}: {_short(value)}" for name, value in sorted(metadata.items())[:_MAX_LINES]]
        if len(metadata) > _MAX_LINES:
            lines.append(f"  … and {len(metadata) - _MAX_LINES:,} more; --json prints all")
    return lines


def _program_lines(shown: Sequence[Loads]) -> list[str]:
    """Return which programs load the file completely."""
    if not shown:
        return []
    widths = [max(map(len, column)) for column in zip(*((x.program, x.answer) for x in shown), strict=True)]
    rows = (f"  {x.program:{widths[0]}}  {x.answer:{widths[1]}}  {x.remark}".rstrip() for x in shown)
    return ["", "Loaded completely by", *rows]


def _printable(line: str) -> str:
    """Return a line; control characters, and characters that the terminal cannot show, are replaced."""
    encoding = sys.stdout.encoding or "utf-8"
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line[:_MAX_LINE_CHARS])
    return shown.encode(encoding, "replace").decode(encoding) + "\n"


def _short(value: str) -> str:
    line = " ".join(value[: 2 * _MAX_CHARS].split())
    is_whole = len(line) <= _MAX_CHARS and len(value) <= 2 * _MAX_CHARS
    return line if is_whole else f"{line[:_MAX_CHARS]}… ({len(value):,} characters)"
