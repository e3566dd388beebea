"""check: the errors and warnings of a config, and a preview of its run, without loading a model."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from modules.config.method_facts import data_in_use
from modules.config.schema import Config
from modules.data.doctor.finding import printable
from modules.rewards.user_code_file import approved_hashes
from modules.system.paths import from_caller
from modules.system.problem import Problem, count, describe_data
from trainer.cli import Verb
from trainer.cli.fit import add_fit_arguments, fit_as_json, fitted
from trainer.cli.options import add_allow_code, add_config_argument, allowed_code, describe, read_config
from trainer.cli.plan import plan_lines
from trainer.preflight import Report, check

_MAX_CAPTIONS = 100
_MAX_SKIPPED = 1000


def _check(options: argparse.Namespace) -> int:
    loaded = read_config(options.config, options.changes, preset=options.preset)
    report = check(
        loaded.config,
        resume_from=from_caller(options.resume) if options.resume else None,
        approved_code=approved_hashes() | allowed_code(loaded.config, options),
    )
    fit = fitted(loaded.config, options) if options.fit else None
    if options.json:
        data = {
            "was_migrated": loaded.was_migrated,
            "load": [{**p.to_json(), "kind": _kind(p, loaded.config)} for p in loaded.problems],
            "problems": [p.to_json() for p in report.problems],
            "preview": asdict(report.preview) if report.preview else None,
            **({"fit": fit_as_json(fit[0])} if fit else {}),
        }
        sys.stdout.write(json.dumps(data, indent=2) + "\n")
    else:
        for problem in (*loaded.problems, *report.problems):
            sys.stdout.write(describe(problem) + "\n")
        sys.stdout.write(_preview(report))
        if options.layers and report.preview is not None:
            sys.stdout.write("".join(f"  {layer}\n" for part in report.preview.trained for layer in part.layers))
        if report.datasets is not None:
            lines = plan_lines(
                report.datasets,
                is_cached=data_in_use(loaded.config).latent_cache,
                epochs=loaded.config.training.epochs,
                every_image=options.images,
            )
            sys.stdout.write("".join(f"{line}\n" for line in lines))
        if fit:
            sys.stdout.write(fit[1])
    return 2 if report.errors else 0


def _kind(problem: Problem, config: Config) -> str:
    """Return what happened to a value of the file: "kept" although unknown, "replaced" by another, or "migrated"."""
    if problem.path in config.unknown:
        return "kept"
    return "migrated" if problem.severity == "info" else "replaced"


def _preview(report: Report) -> str:
    preview = report.preview
    if preview is None:
        return ""
    sizes = ", ".join(f"{number:,} at {size}" for size, number in preview.buckets)
    words = describe_data(preview.num_images, preview.num_prompts, preview.num_pairs)
    images = f"{words} ({sizes})" if sizes else "No images"
    trained = "".join(f"{part}\n" for part in preview.trained)
    model, passes, memory = (f"{line}\n" if line else "" for line in (preview.model, preview.passes, preview.memory))
    return (
        f"{model}{images}, {preview.num_validation_images} for validation.\n"
        f"{count(preview.steps_first_epoch, 'step')} in the first epoch, {preview.total_steps:,} in total.\n"
        f"{trained}{passes}{memory}{_listed('Skipped files', preview.skipped, _MAX_SKIPPED)}"
        f"{_listed('Captions', preview.captions, _MAX_CAPTIONS)}"
    )


def _listed(title: str, findings: Sequence[tuple[str, str]], max_lines: int) -> str:
    """Return files and what is wrong with them, one per line under a title; nothing without any."""
    lines = [f"  {printable(file)}: {printable(what)}\n" for file, what in findings[:max_lines]]
    more = len(findings) - max_lines
    rest = f"  and {more:,} more; --json lists all\n" if more > 0 else ""
    return f"{title}:\n{''.join(lines)}{rest}" if findings else ""


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument(
        "--resume",
        metavar="FOLDER",
        default="",
        help="also report what prevents resuming from this backup, run's folder or workspace",
    )
    parser.add_argument("--images", action="store_true", help="also list bucket, scale and crop of every image")
    parser.add_argument("--layers", action="store_true", help="also list every layer that is trained")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_fit_arguments(parser)
    add_allow_code(parser)


CHECK = Verb("list the errors and warnings of a config, and what the run would do", _arguments, _check)
