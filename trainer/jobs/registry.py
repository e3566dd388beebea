"""The registry of jobs: one line each. A record is imported when it is read."""

from __future__ import annotations

from collections.abc import Mapping

from modules.settings.lazy_variants import LazyRecords
from trainer.jobs.spec import JobSpec

JOBS: Mapping[str, JobSpec] = LazyRecords(
    "trainer.jobs",
    {
        "check": "check",
        "doctor": "doctor",
        "sample": "sample",
        "checkpoints": "checkpoints",
        "preview": "preview",
        "probe": "probe",
        "self-test": "probe",
        "inspect": "inspect",
        "models": "models",
        "convert": "files",
        "export": "export",
        "lora-merge": "files",
        "lora-combine": "files",
        "lora-resize": "files",
        "lora-extract": "files",
        "lora-blocks": "files",
        "diff": "diff",
        "schema": "config",
        "caption": "caption",
        "mask": "mask",
        "bundle": "bundle",
        "install": "install",
    },
)
