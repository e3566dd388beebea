"""The registry of jobs: one line each. A record is imported when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from modules.system.factories import load_factory
from trainer.jobs.spec import JobSpec

_RECORDS: Mapping[str, str] = {
    "check": "check:CHECK",
    "doctor": "doctor:DOCTOR",
    "sample": "sample:SAMPLE",
    "checkpoints": "checkpoints:CHECKPOINTS",
    "preview": "preview:PREVIEW",
    "probe": "probe:PROBE",
    "self-test": "probe:SELF_TEST",
    "inspect": "inspect:INSPECT",
    "models": "models:MODELS",
    "convert": "files:CONVERT",
    "export": "export:EXPORT",
    "lora-merge": "files:LORA_MERGE",
    "lora-combine": "files:LORA_COMBINE",
    "lora-resize": "files:LORA_RESIZE",
    "lora-extract": "files:LORA_EXTRACT",
    "lora-blocks": "files:LORA_BLOCKS",
    "diff": "diff:DIFF",
    "schema": "config:SCHEMA",
    "caption": "caption:CAPTION",
    "mask": "mask:MASK",
    "bundle": "bundle:BUNDLE",
    "install": "install:INSTALL",
}


class _Jobs(Mapping[str, JobSpec]):
    """The records by name, in order."""

    def __getitem__(self, name: str) -> JobSpec:
        record: JobSpec = load_factory(f"trainer.jobs.{_RECORDS[name]}")
        return record

    def __iter__(self) -> Iterator[str]:
        return iter(_RECORDS)

    def __len__(self) -> int:
        return len(_RECORDS)


JOBS: Mapping[str, JobSpec] = _Jobs()
