"""The tools of the Tools page: the jobs that write a model or adapter file, and where dropped files fit."""

from __future__ import annotations

from pathlib import Path

from modules.settings.field import FieldRecord, Section, records_of
from modules.system.paths import as_config_path
from trainer.jobs.registry import JOBS
from trainer.jobs.spec import LORA, LORA_FILE, JobSpec, argument_of

TOOLS: tuple[str, ...] = ("convert", "lora-merge", "lora-combine", "lora-resize", "lora-extract", "lora-blocks")
OUTPUT = "out"


def tools() -> tuple[JobSpec, ...]:
    """Return the records of the tools."""
    return tuple(JOBS[name] for name in TOOLS)


def proposed_output(spec: JobSpec, settings: Section) -> str:
    """Return a name for the result next to its input; empty without any."""
    value = getattr(settings, spec.input)
    first = (value[0].path if value else "") if isinstance(value, tuple) else value
    source = Path(first)
    if not source.name:
        return ""
    stem, suffix = source.name.removesuffix(source.suffix), ".safetensors" if source.suffix else ""
    ending = spec.ending if spec.ending.endswith(".safetensors") else f"{spec.ending}{suffix}"
    return as_config_path(source.with_name(f"{stem}{ending}"))


def place_for(spec: JobSpec, settings: Section, *, is_lora: bool) -> FieldRecord | None:
    """Return the field for a dropped model or LoRA: a list or an empty field, else the first that may hold it."""
    fields = [record for record in records_of(spec.settings) if _accepts(spec, record, is_lora=is_lora)]
    fields.sort(key=lambda record: is_lora != _is_for_loras(spec, record))
    free = (record for record in fields if record.kind == "list" or not getattr(settings, record.path))
    return next(free, next(iter(fields), None))


def _accepts(spec: JobSpec, record: FieldRecord, *, is_lora: bool) -> bool:
    if _is_for_loras(spec, record):
        return is_lora
    return record.setting.path_kind == "model"


def _is_for_loras(spec: JobSpec, record: FieldRecord) -> bool:
    return argument_of(spec.settings, record.path).metavar in (LORA, LORA_FILE)
