"""lora-resize: change the ranks of a LoRA by SVD, with the least change of what it does."""

from __future__ import annotations

import argparse

from modules.adapters.registry import adapter_labels
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.jobs import add_output_arguments, run_job
from trainer.cli.lora_options import add_rank_arguments, output_of, required_choice


def _resize(options: argparse.Namespace) -> int:
    from trainer.tools.lora import resize_lora

    choice, output = required_choice(options), output_of(options)
    return run_job(options, lambda job: resize_lora(job, from_caller(options.source), choice, output))


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="LORA", help=f"a {adapter_labels(needs_model=False)} file")
    parser.add_argument("out", metavar="OUT", help="the .safetensors file to write")
    add_rank_arguments(parser)
    add_output_arguments(parser)


LORA_RESIZE = Verb("change the ranks of a LoRA", _arguments, _resize)
