"""What the verbs caption and mask share: a job over the images of a folder, and its exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from modules.annotators.spec import CaptionerSpec, MaskerSpec
from trainer.annotation.models import load_annotator
from trainer.annotation.originals import Originals
from trainer.annotation.work import Summary, Work, carry_out
from trainer.cli.jobs import run_job
from trainer.job_events import JobFinished, JobStopped
from trainer.tools.job import Job

_FAILED = 1
WorkOf = Callable[[Callable[[], Any], Originals], Work]


def annotate(
    options: argparse.Namespace,
    work_of: WorkOf,
    spec: CaptionerSpec | MaskerSpec,
    settings: object,
    *,
    what: str,
    folder: Path,
) -> int:
    """Work on all images and return the exit code. `what` is "captions" or "masks", `folder` the one they are in.

    `work_of(load, originals)` returns the work; `load()` returns the captioner or masker.
    """
    originals = Originals(folder)
    done: list[Summary] = []

    def work(job: Job) -> JobFinished | JobStopped:
        load = partial(
            load_annotator, spec, settings, device=options.device, may_download=options.download, job=job
        )  # fmt: skip
        done.append(carry_out(work_of(load, originals), job, originals, what=what))
        words = done[-1].words(what)
        return JobStopped(words) if done[-1].outcome == "stopped" else JobFinished(words)

    code = run_job(options, work, stopped=f"Stopped. The {what} that were written stay.")
    return _FAILED if not code and any(summary.num_failed for summary in done) else code
