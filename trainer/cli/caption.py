"""caption: write captions for the images of a folder with a captioner."""

from __future__ import annotations

import argparse
from functools import partial

from modules.annotators.registry import CAPTIONERS
from trainer.annotation.arguments import add_caption_arguments, caption_request
from trainer.annotation.captions import caption_work
from trainer.cli import Verb
from trainer.cli.annotate import annotate
from trainer.cli.jobs import add_job_arguments


def _caption(options: argparse.Namespace) -> int:
    request = caption_request(options)
    return annotate(
        options,
        partial(caption_work, request),
        CAPTIONERS[request.model],
        request.settings,
        what="captions",
        folder=request.folder,
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes a caption beside each image of a folder. Existing captions stay, unless --mode is replace, new_line or "
        "append; copies of the changed files are kept. Ctrl+C stops. Exit codes: 0 done, 1 some images could not be "
        "done, 2 the model cannot be used, 130 stopped."
    )
    add_caption_arguments(parser)
    add_job_arguments(parser)


CAPTION = Verb("write captions for the images of a folder with a model", _arguments, _caption)
