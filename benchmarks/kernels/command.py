"""`python -m benchmarks kernels`: count the kernels of a training step of published models, without a GPU."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from modules.system.atomic import write_text
from modules.system.paths import from_caller
from trainer.cli.program import Verb, run_verb
from trainer.launch import import_engine

_SUMMARY = "Count the kernels, the memory traffic and the casts of a training step at full size, without a GPU."
_MODELS = ("sdxl", "z-image")
_MODES = ("off", "block", "transformer", "selective", "whole")
_SHOWN = 25


def main(arguments: Sequence[str]) -> int:
    """Run the command with its arguments and return the exit code."""
    return run_verb("python -m benchmarks kernels", Verb(_SUMMARY, _arguments, _count), arguments)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", choices=_MODELS, default=list(_MODELS), help="the models")
    parser.add_argument("--checkpointing", nargs="+", choices=_MODES, default=["off", "block"], help="of the denoiser")
    parser.add_argument("--side", type=int, default=1024, help="pixels of a side of the images (default: 1024)")
    parser.add_argument("--batch", type=int, default=1, help="images of a batch (default: 1)")
    parser.add_argument("--dtype", default="bfloat16", help="of the frozen weights (default: bfloat16)")
    parser.add_argument(
        "--autocast", action="store_true", help="count steps under autocast, whether they need it or not"
    )
    parser.add_argument("--operations", action="store_true", help="also show the most frequent operations")
    parser.add_argument("--json", metavar="FILE", help="also write the results as JSON")


def _count(options: argparse.Namespace) -> int:
    import_engine(in_window=False)
    from benchmarks.kernels.steps import MODELS, count_step, lora_config

    counts_by_title = {}
    for name in options.models:
        model = MODELS[name]
        for mode in options.checkpointing:
            settings = {"checkpointing": mode, "dtype": options.dtype}
            config = lora_config(model.family, side_px=options.side, batch_size=options.batch, **settings)
            counts = count_step(model, config, autocasts=options.autocast)
            title = f"{name}{', autocast' if options.autocast else ''}, checkpointing {mode}"
            counts_by_title[title] = asdict(counts)
            sys.stdout.write(f"{title}: {counts}\n")
            if options.operations:
                for operation, (number, traffic) in list(counts.by_operation.items())[:_SHOWN]:
                    sys.stdout.write(f"    {operation:48}{number:8,}{traffic / 1e9:9.2f} GB\n")
            sys.stdout.flush()
    if options.json:
        write_text(from_caller(options.json), json.dumps(counts_by_title, indent=2) + "\n")
    return 0
