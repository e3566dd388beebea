"""The checks of the doctor in the order of their report, and their findings as JSON and as a table for a terminal."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from modules.data.doctor import caption_checks, dataset_checks, pixel_checks
from modules.data.doctor.finding import SEVERITIES, CheckSpec, Examination, Finding, printable, short_name
from modules.system.problem import count, shorten

CHECKS: Mapping[str, CheckSpec] = {
    spec.name: spec
    for spec in (
        pixel_checks.UNREADABLE,
        dataset_checks.NEAR_DUPLICATE,
        dataset_checks.TINY,
        pixel_checks.BLURRED,
        pixel_checks.NOISE,
        pixel_checks.DARK,
        pixel_checks.BLOWN_OUT,
        pixel_checks.LOW_VARIANCE,
        pixel_checks.LETTERBOX,
        dataset_checks.EXTREME_ASPECT,
        dataset_checks.BUCKET_WASTE,
        dataset_checks.SMALL_BUCKET,
        dataset_checks.CONCEPT_IMBALANCE,
        caption_checks.MISSING_CAPTION,
        caption_checks.DUPLICATE_CAPTION,
        caption_checks.LONG_CAPTION,
        caption_checks.CONSTANT_TAG,
        caption_checks.RARE_TAG,
        pixel_checks.SURPRISING_FORMAT,
        pixel_checks.WRONG_SUFFIX,
    )
}


def find_all(
    examined: Examination, progress: Callable[[int, int], None] = lambda done, total: None
) -> tuple[Finding, ...]:
    """Return the findings of all checks: by check in the order of the registry, by severity, then by file.

    `progress` is called with the number of finished checks and of all, before each check and within long ones; it may
    raise to stop.
    """
    order = list(CHECKS)
    findings: list[Finding] = []
    for number, spec in enumerate(CHECKS.values()):
        check = partial(progress, number, len(CHECKS))
        check()
        findings += (replace(found, check=spec.name) for found in spec.find(replace(examined, check=check)))
    return tuple(
        sorted(
            findings,
            key=lambda f: (order.index(f.check), SEVERITIES.index(f.severity), [str(p) for p in f.files], f.reason),
        )
    )


SHOWN_PER_CHECK = 20
_NAME_CHARS, _REASON_CHARS, _OTHERS_SHOWN = 44, 300, 9


def as_json(findings: Sequence[Finding], *, num_images: int, num_validation_images: int, num_prompts: int = 0) -> str:
    """Return the findings as JSON: the same for the same files, whatever the number of threads."""
    data: dict[str, Any] = {
        "num_images": num_images,
        "num_validation_images": num_validation_images,
        "num_prompts": num_prompts,
        "counts": {severity: number_of(findings, severity) for severity in SEVERITIES},
        "findings": [f.to_json() for f in findings],
    }
    return json.dumps(data, indent=2) + "\n"


def as_table(findings: Sequence[Finding], *, num_images: int, num_validation_images: int, num_prompts: int = 0) -> str:
    """Return the findings by check as lines for a terminal, at most `SHOWN_PER_CHECK` of each."""
    lines = [f"{images_of(num_images, num_validation_images, num_prompts)}: {summary_of(findings)}."]
    for spec, of_check in by_check(findings):
        lines += ["", f"{spec.label} ({len(of_check):,})", *_rows(of_check[:SHOWN_PER_CHECK])]
        if len(of_check) > SHOWN_PER_CHECK:
            lines.append(f"  and {len(of_check) - SHOWN_PER_CHECK:,} more; --json and --html list all")
        lines += [f"  -> {fix}" for fix in dict.fromkeys(f.fix for f in of_check[:SHOWN_PER_CHECK])]
    return "\n".join(lines) + "\n"


def by_check(findings: Sequence[Finding]) -> Iterator[tuple[CheckSpec, list[Finding]]]:
    """Yield each check that has findings, with them."""
    for name, spec in CHECKS.items():
        if of_check := [f for f in findings if f.check == name]:
            yield spec, of_check


def number_of(findings: Sequence[Finding], severity: str) -> int:
    """Return how many findings have a severity."""
    return sum(f.severity == severity for f in findings)


def images_of(num_images: int, num_validation_images: int, num_prompts: int = 0) -> str:
    """Return how many images were examined: "1,200 images and 20 for validation", and the number of prompts."""
    validation = f" and {num_validation_images:,} for validation" if num_validation_images else ""
    prompts = f"{count(num_prompts, 'prompt')}" if num_prompts else ""
    images = f"{count(num_images, 'image')}{validation}" if num_images or validation or not prompts else ""
    return ", ".join(filter(None, (images, prompts)))


def summary_of(findings: Sequence[Finding]) -> str:
    """Return the numbers of findings by severity: "1 error, 3 warnings"."""
    if not findings:
        return "nothing found"
    names = {"error": "error", "warning": "warning", "info": "note"}
    return ", ".join(count(n, names[s]) for s in SEVERITIES if (n := number_of(findings, s)))


def figure_of(finding: Finding) -> str:
    """Return the figure of a finding with its unit."""
    return f"{finding.figure:,.3g} {finding.unit}" if finding.figure < 1000 else f"{finding.figure:,.0f} {finding.unit}"


def _rows(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield a line for each finding, and below it the reason if it differs from the finding before."""
    common = Counter(f.reason for f in findings)
    before = ""
    for finding in findings:
        more = len(finding.files) - 1
        name = short_name(finding.files[0]) + (f" and {more:,} more" if more > 0 else "")
        label = finding.severity.upper() if finding.severity != "info" else "NOTE"
        yield f"  {label:8}{_shorten_middle(name):{_NAME_CHARS}}  {figure_of(finding)}"
        if finding.reason != before or common[finding.reason] == 1:
            yield f"          {shorten(printable(finding.reason), max_chars=_REASON_CHARS)}"
        if more > 0:
            others = ", ".join(short_name(p) for p in finding.files[1:_OTHERS_SHOWN])
            yield f"          also: {shorten(others, max_chars=_REASON_CHARS)}"
        before = finding.reason


def _shorten_middle(name: str) -> str:
    """Return a name, without its middle where it is too long: its beginning and its end tell it from others."""
    if len(name) <= _NAME_CHARS:
        return name
    half = (_NAME_CHARS - 3) // 2
    return f"{name[:half]}...{name[-half:]}"
