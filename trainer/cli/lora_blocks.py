"""lora-blocks: give each block of a LoRA a strength of its own."""

from __future__ import annotations

import argparse

from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.jobs import add_output_arguments, run_job
from trainer.cli.lora_options import output_of


def _scale(options: argparse.Namespace) -> int:
    from trainer.tools.lora import scale_lora

    output = output_of(options)
    return run_job(options, lambda job: scale_lora(job, from_caller(options.source), options.strengths, output))


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="LORA", help="an adapter file")
    parser.add_argument("out", metavar="OUT", help="the .safetensors file to write")
    parser.add_argument(
        "strengths",
        metavar="STRENGTHS",
        help='as in "down=1, mid=0.5, OUT03=0, text=0.8", or a list of 17 or 26 numbers for SD, 12 or 20 for SDXL',
    )
    add_output_arguments(parser)


LORA_BLOCKS = Verb("scale a LoRA by block", _arguments, _scale)
