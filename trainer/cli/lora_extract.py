"""lora-extract: write the difference of two models as a LoRA."""

from __future__ import annotations

import argparse

from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.jobs import add_output_arguments, run_job
from trainer.cli.lora_options import add_rank_arguments, output_of, required_choice


def _extract(options: argparse.Namespace) -> int:
    from trainer.tools.lora import extract_lora

    choice, output = required_choice(options), output_of(options)
    base, tuned = from_caller(options.base), from_caller(options.tuned)
    has_text = not options.no_text_encoders
    return run_job(options, lambda job: extract_lora(job, base, tuned, choice, output, with_text_encoders=has_text))


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("base", metavar="BASE", help="the base model: a file or a diffusers folder")
    parser.add_argument("tuned", metavar="MODEL", help="the model that was trained from it")
    parser.add_argument("out", metavar="OUT", help="the .safetensors file to write")
    add_rank_arguments(parser)
    parser.add_argument("--no-text-encoders", action="store_true", help="extract only the difference of the UNet")
    add_output_arguments(parser, default_dtype="float16")


LORA_EXTRACT = Verb("write the difference of two models as a LoRA", _arguments, _extract)
