"""lora-merge: merge LoRAs, each with a strength, into a model: a single file or a diffusers folder."""

from __future__ import annotations

import argparse

from modules.adapters.registry import adapter_labels
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.jobs import add_output_arguments, run_job
from trainer.cli.lora_options import add_files_argument, output_of, weighted_files


def _merge(options: argparse.Namespace) -> int:
    from trainer.tools.lora import merge_loras

    files, output = weighted_files(options.files), output_of(options)
    return run_job(options, lambda job: merge_loras(job, from_caller(options.model), files, output))


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a model file or a diffusers folder")
    parser.add_argument("out", metavar="OUT", help="a .safetensors file, or a folder for a model in diffusers layout")
    add_files_argument(parser, what=f"the {adapter_labels()} files to merge")
    add_output_arguments(parser, default_dtype="that of the model")


LORA_MERGE = Verb("merge LoRAs into a model", _arguments, _merge)
