"""convert: a model between diffusers folder and single file, a LoRA between kohya and PEFT format, any of them to
another dtype.
"""

from __future__ import annotations

import argparse

from modules.families.kinds.registry import FILE_KINDS
from modules.system.paths import from_caller
from trainer.cli import Verb
from trainer.cli.jobs import add_output_arguments, run_job
from trainer.job_events import JobFinished
from trainer.tools.convert import convert_file
from trainer.tools.job import Job

_FORMS = tuple(dict.fromkeys(form for kind in FILE_KINDS.values() for form in kind.forms))


def _convert(options: argparse.Namespace) -> int:
    def work(job: Job) -> JobFinished:
        return convert_file(
            job,
            from_caller(options.source),
            from_caller(options.out),
            to=options.to,
            dtype=options.dtype,
            use_ema=options.ema,
            to_inpainting=options.to_inpainting,
            overwrite=options.overwrite,
        )

    return run_job(options, work)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="IN", help="a model file, a diffusers folder or a LoRA")
    parser.add_argument("out", metavar="OUT", help="a .safetensors file, or a folder for a model in diffusers layout")
    parser.add_argument(
        "--to",
        choices=_FORMS,
        help="the output format (default: by the name of OUT; for a LoRA in kohya format peft, else kohya)",
    )
    parser.add_argument("--ema", action="store_true", help="use the EMA weights if a checkpoint has both")
    parser.add_argument(
        "--to-inpainting",
        action="store_true",
        help="turn a base model into an inpainting model that predicts the same, to be trained as one",
    )
    add_output_arguments(parser, default_dtype="unchanged")


CONVERT = Verb("convert a model or a LoRA to another format or dtype", _arguments, _convert)
