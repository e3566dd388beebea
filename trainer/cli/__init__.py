"""The list of the command line's verbs, one file each."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: a one-line summary, its arguments, and the function that runs it and returns the exit code."""

    summary: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def verbs() -> Mapping[str, Verb]:
    """Return all verbs by name."""
    from trainer.cli import (
        bundle,
        caption,
        check,
        convert,
        diff,
        doctor,
        export,
        inspect,
        lora_blocks,
        lora_combine,
        lora_extract,
        lora_merge,
        lora_resize,
        mask,
        preview,
        probe,
        queue,
        runs,
        sample,
        schema,
        secrets,
    )

    return {
        "train": runs.TRAIN,
        "resume": runs.RESUME,
        "fork": runs.FORK,
        "check": check.CHECK,
        "doctor": doctor.DOCTOR,
        "sample": sample.SAMPLE,
        "cache": runs.CACHE,
        "queue": queue.QUEUE,
        "preview": preview.PREVIEW,
        "probe": probe.PROBE,
        "inspect": inspect.INSPECT,
        "convert": convert.CONVERT,
        "export": export.EXPORT,
        "lora-merge": lora_merge.LORA_MERGE,
        "lora-combine": lora_combine.LORA_COMBINE,
        "lora-resize": lora_resize.LORA_RESIZE,
        "lora-extract": lora_extract.LORA_EXTRACT,
        "lora-blocks": lora_blocks.LORA_BLOCKS,
        "diff": diff.DIFF,
        "schema": schema.SCHEMA,
        "caption": caption.CAPTION,
        "mask": mask.MASK,
        "secrets": secrets.SECRETS,
        "bundle": bundle.BUNDLE,
    }
