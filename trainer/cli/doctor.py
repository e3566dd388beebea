"""doctor: what is probably wrong with the images and captions of a config, before a run learns it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from modules.data.doctor.finding import printable
from modules.data.doctor.page import as_html
from modules.data.doctor.report import as_json, as_table
from modules.system.atomic import write_text
from modules.system.errors import DarkroomError
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.console import Meter
from trainer.cli.options import add_config_argument, read_config
from trainer.preflight.doctor import examine, thumbnails_of

_STOPPED = 130


def _doctor(options: argparse.Namespace) -> int:
    config = read_config(options.config, options.changes, preset=options.preset).config
    meter = Meter()
    progress = with_time_left(meter.progress)
    try:
        report = examine(config, progress)
        numbers = {
            "num_images": report.num_images,
            "num_validation_images": report.num_validation_images,
            "num_prompts": report.num_prompts,
        }
        if options.html:
            thumbnails = thumbnails_of(report.findings, progress)
            page = as_html(report.findings, thumbnails, title=options.config, **numbers)
            _write(from_caller(options.html), page)
    except KeyboardInterrupt:
        meter.line("Stopped. Nothing was written.")
        return _STOPPED
    finally:
        meter.close()
    sys.stdout.write((as_json if options.json else as_table)(report.findings, **numbers))
    return 1 if report.has_errors else 0


def with_time_left(show: Callable[[str, int, int, str], None]) -> Callable[[str, int, int], None]:
    """Return a progress function that adds the time left, from the mean time of what is done so far."""
    started: dict[str, float] = {}

    def progress(name: str, done: int, total: int) -> None:
        began = started.setdefault(name, time.monotonic())
        if not done:
            return
        left = (time.monotonic() - began) / done * (total - done)
        show(name, done, total, f"about {left:.0f} s left" if left >= 1 else "")

    return progress


def _write(file: Path, page: str) -> None:
    try:
        write_text(file, page)
    except OSError as error:
        message = f"The page {printable(file)} cannot be written: {error.strerror or error}."
        raise DarkroomError(message, advice="Choose another file with --html.") from error


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    parser.description = (
        "Decodes every image once and lists what is probably wrong: unreadable, tiny, blurred, dark and nearly equal "
        "images, letterbox bars, missing and duplicate captions, unusual tags, buckets and concepts out of balance. "
        "Nothing is changed. Exit codes: 0 without errors (warnings and notes do not count), 1 if a file cannot be "
        "read, 2 if the config is invalid, 130 stopped."
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    parser.add_argument("--html", metavar="FILE", default="", help="also write a page with thumbnails")


DOCTOR = Verb("find the images and captions that are probably wrong", _arguments, _doctor)
