"""mask: write masks for the images of a folder with a masker."""

from __future__ import annotations

import argparse
from functools import partial

from modules.annotators.registry import MASKERS
from trainer.annotation.arguments import add_mask_arguments, mask_request
from trainer.annotation.masks import mask_work
from trainer.cli import Verb
from trainer.cli.annotate import annotate
from trainer.cli.jobs import add_job_arguments


def _mask(options: argparse.Namespace) -> int:
    request = mask_request(options)
    return annotate(
        options,
        partial(mask_work, request),
        MASKERS[request.model],
        request.settings,
        what="masks",
        folder=request.masks_folder or request.folder,
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes a mask beside each image of a folder, as cat-masklabel.png beside cat.jpg. Existing masks stay, unless "
        "--mode is replace, add, subtract or blend; copies of the changed files are kept. Ctrl+C stops. Exit codes: 0 "
        "done, 1 some images could not be done, 2 the model cannot be used, 130 stopped."
    )
    add_mask_arguments(parser)
    add_job_arguments(parser)


MASK = Verb("write masks for the images of a folder with a model", _arguments, _mask)
