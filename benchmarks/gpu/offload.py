"""Stage 6: offloaded layers: the bytes that a step copies, and the share of the copies that computing hides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from benchmarks.gpu.full_size import measure, step_checks
from benchmarks.gpu.models import Subject, device_of, subjects, training_config
from benchmarks.gpu.stage import Case, Finding, Request, at_least, at_most
from benchmarks.rows import Row

_FRACTIONS = (0.5, 1.0)
_MIN_HIDDEN = 0.8  # of the share that can be hidden: a fast GPU computes for less time than its bus copies
_MAX_BACK = 0.05  # of the bytes copied to the device: gradients and activations, but no frozen weights


def cases(request: Request) -> Sequence[Case]:
    """Return a case for each model and share of its layers."""
    return [
        Case(f"{subject.label}, {fraction:.0%} of the layers", partial(_offload, request, subject, fraction))
        for subject in subjects(request)
        for fraction in _FRACTIONS
    ]


def _offload(request: Request, subject: Subject, fraction: float, seconds: float) -> Iterator[Finding]:
    denoiser = {"checkpointing": "block", "offload_fraction": fraction}
    config = training_config(request, subject, {"trains": "adapter", "batch_size": 1, "denoiser": denoiser})
    step = measure(request, config, seconds)
    # A CPU pins no memory, so there each copy of a layer counts as a wait.
    yield from step_checks(request, f"{subject.side_px} px", step, counts_waits=not device_of(request).is_cpu)
    if not step.kernels:
        return
    copies = step.copies
    yield Row(
        "copies",
        f"{copies.to_device_bytes / 1e9:.2f} GB to the device, {copies.from_device_bytes / 1e9:.2f} GB from it, "
        f"{copies.hidden_share:.0%} of their time hidden, {copies.most_hidden:.0%} at most",
    )
    least = round(_MIN_HIDDEN * copies.most_hidden, 3)
    yield at_least("share of the copies that is hidden", copies.hidden_share, least)
    back = copies.from_device_bytes / max(1, copies.to_device_bytes)
    yield at_most("bytes copied back for each copied there", back, _MAX_BACK)
