"""The passes of a model: recordings that are known already, or traced now in another process."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modules.config.schema import Config
from modules.estimate.architecture import architecture_of
from modules.estimate.passes import Passes
from modules.estimate.recordings import PassesOfPart, kept_file, recordings_of
from modules.families.spec import FamilySpec
from trainer.child.process import spawn_python
from trainer.preflight.report import Progress, no_progress

logger = logging.getLogger(__name__)

# Errors while reading shapes from a malformed config.json: a missing key, a string or null instead of a number, a list
# instead of an object. Used only for that.
MALFORMED_CONFIG = (KeyError, TypeError, ValueError, IndexError, AttributeError)

ESTIMATING = "estimating memory"
"""The name of the work in reports of progress."""

_MAX_SECONDS = 300  # of a trace on a busy machine; usually it takes 10
_POLL_SECONDS = 0.1
# The files of shapes whose common trace has failed: later estimates of the same model need not try again.
_failed: set[frozenset[Path]] = set()
_tracing = threading.Lock()
# The passes of the models of the last estimates, the latest first, with all that was replayed of them: most changes of
# a config change no pass, and a start estimates the same several times.
_recent: list[Passes] = []
_MAX_RECENT = 8
_choosing = threading.Lock()


def trace_unknown(config: Config, progress: Progress = no_progress) -> None:
    """Trace the passes of a config's model, unless its shapes are known, so that its estimates need not wait.

    `progress` is called until that has ended, and may raise to stop it.
    """
    try:
        architecture = architecture_of(config.model.base_model, config.model.family.name, config.model.variant)
        if architecture is not None:
            passes_of(config.family, architecture.configs, progress)
    except MALFORMED_CONFIG:  # the check of the model reports it
        return


def passes_of(
    spec: FamilySpec,
    configs: Mapping[str, Mapping[str, Any]],
    progress: Progress = no_progress,
    *,
    num_references: int = 0,
    seen_tokens: int = 0,
) -> Passes:
    """Return the passes of a model; a shape that is not known yet is traced, which takes several seconds.

    `num_references` are the reference images that its denoiser gets, `seen_tokens` their tokens in each caption.

    Raises ValueError if that fails, as for a config that is not valid, and KeyError if a part has no config.
    """
    known = recordings_of(spec, configs)
    if len(known) < len(spec.parts):
        with _one_at_a_time(progress):  # the window estimates for its preview and for the check of a start at once
            known = _trace_missing(spec, configs, progress)
    return _shared(spec, known, num_references, seen_tokens)


def _shared(spec: FamilySpec, recordings: Mapping[str, PassesOfPart], num_references: int, seen_tokens: int) -> Passes:
    """Return the passes of these recordings that an earlier estimate has replayed, or new ones."""
    with _choosing:
        passes = next((p for p in _recent if p.are_of(spec, recordings, num_references, seen_tokens)), None)
        if passes is None:
            passes = Passes(spec, recordings, num_references=num_references, seen_tokens=seen_tokens)
        _recent[:] = [passes, *(other for other in _recent if other is not passes)][:_MAX_RECENT]
    return passes


def _trace_missing(
    spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]], progress: Progress
) -> dict[str, PassesOfPart]:
    known = recordings_of(spec, configs)
    missing = {part.name: configs[part.name] for part in spec.parts if part.name not in known}
    files = frozenset(kept_file(spec, part, missing[part.name]) for part in spec.parts if part.name in missing)
    if missing and files not in _failed:
        trace_in_child(spec, missing, progress)
        known = recordings_of(spec, configs)
    if unknown := [name for name in missing if name not in known]:
        _failed.add(files)  # as one set: a trace ends at the first part that fails, so the others may be fine
        raise ValueError(f"The memory of {', '.join(unknown)} could not be estimated.")
    return known


@contextmanager
def _one_at_a_time(progress: Progress) -> Iterator[None]:
    """Wait until no other thread traces; `progress` is called until then, and may raise to stop."""
    while not _tracing.acquire(timeout=_POLL_SECONDS):
        progress(ESTIMATING, 0, 1)
    try:
        yield
    finally:
        _tracing.release()


def trace_in_child(spec: FamilySpec, configs: Mapping[str, Mapping[str, Any]], progress: Progress) -> None:
    """Trace the passes of these parts in another process, because that needs torch, and wait until they are stored."""
    request = json.dumps({"family": spec.name, "variant": spec.variant, "configs": configs})
    try:
        child = spawn_python(["-m", "modules.estimate.tracing"], subprocess.PIPE)
    except OSError as error:
        logger.warning("The trace of a model's passes did not start: %s", error)
        return
    with child:
        try:
            errors = _communicate(child, request, progress)
        finally:  # unless it has ended, `progress` has stopped the estimate
            child.kill()
    if child.returncode:
        logger.warning("The passes of %s could not be traced: %s", ", ".join(configs), errors or "no reason is known")


def _communicate(child: subprocess.Popen[str], request: str, progress: Progress) -> str:
    """Send a request and wait for the child's end; return the last line of its standard error."""
    begun, sent = time.monotonic(), False
    while True:
        progress(ESTIMATING, 0, 1)
        try:
            _, errors = child.communicate(None if sent else request, timeout=_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            sent = True
            if time.monotonic() - begun > _MAX_SECONDS:
                child.kill()
        else:
            progress(ESTIMATING, 1, 1)
            return errors.strip().rpartition("\n")[2]
