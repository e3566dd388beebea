"""lora-combine: one LoRA that is the weighted sum of several; a negative strength subtracts."""

from __future__ import annotations

import argparse

from trainer.cli import Verb
from trainer.cli.jobs import add_output_arguments, run_job
from trainer.cli.lora_options import add_files_argument, add_rank_arguments, output_of, rank_choice, weighted_files


def _combine(options: argparse.Namespace) -> int:
    from trainer.tools.lora import combine_loras

    files, output, choice = weighted_files(options.files), output_of(options), rank_choice(options)
    return run_job(options, lambda job: combine_loras(job, files, choice, output))


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("out", metavar="OUT", help="the .safetensors file to write")
    add_files_argument(parser, what="the LoRAs to add")
    add_rank_arguments(parser)
    add_output_arguments(parser)


LORA_COMBINE = Verb("add and subtract LoRAs, exactly or reduced to a rank", _arguments, _combine)
