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
        benchmark,
        bundle,
        check,
        convert,
        demo,
        diff,
        doctor,
        inspect,
        preview,
        runs,
        sample,
        schema,
        secrets,
    )

    return {
        "train": runs.TRAIN,
        "resume": runs.RESUME,
        "check": check.CHECK,
        "doctor": doctor.DOCTOR,
        "sample": sample.SAMPLE,
        "cache": runs.CACHE,
        "preview": preview.PREVIEW,
        "inspect": inspect.INSPECT,
        "convert": convert.CONVERT,
        "diff": diff.DIFF,
        "schema": schema.SCHEMA,
        "secrets": secrets.SECRETS,
        "make-demo-model": demo.MAKE_DEMO_MODEL,
        "bundle": bundle.BUNDLE,
        "benchmark": benchmark.BENCHMARK,
    }
