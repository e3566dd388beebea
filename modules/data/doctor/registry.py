"""The checks of the doctor, one line each, in the order of their report."""

from __future__ import annotations

from collections.abc import Mapping

from modules.data.doctor import caption_checks, pixel_checks, set_checks, size_checks
from modules.data.doctor.examined import Examined
from modules.data.doctor.finding import SEVERITIES, CheckSpec, Finding

CHECKS: Mapping[str, CheckSpec] = {
    spec.name: spec
    for spec in (
        pixel_checks.UNREADABLE,
        set_checks.NEAR_DUPLICATE,
        size_checks.TINY,
        pixel_checks.BLURRED,
        pixel_checks.DARK,
        pixel_checks.BLOWN_OUT,
        pixel_checks.LOW_VARIANCE,
        pixel_checks.LETTERBOX,
        size_checks.EXTREME_ASPECT,
        size_checks.BUCKET_WASTE,
        size_checks.SMALL_BUCKET,
        set_checks.CONCEPT_IMBALANCE,
        caption_checks.MISSING_CAPTION,
        caption_checks.DUPLICATE_CAPTION,
        caption_checks.LONG_CAPTION,
        caption_checks.CONSTANT_TAG,
        caption_checks.RARE_TAG,
        pixel_checks.SURPRISING_FORMAT,
        pixel_checks.WRONG_SUFFIX,
    )
}


def find_all(examined: Examined) -> tuple[Finding, ...]:
    """Return the findings of all checks: by check in the order of the registry, by severity, then by file."""
    order = list(CHECKS)
    found = [finding for spec in CHECKS.values() for finding in spec.find(examined)]
    return tuple(
        sorted(
            found,
            key=lambda f: (order.index(f.check), SEVERITIES.index(f.severity), [str(p) for p in f.files], f.reason),
        )
    )
