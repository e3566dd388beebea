"""mask: write masks for the images of a folder with a masker."""

from __future__ import annotations

import argparse
from functools import partial

from modules.annotators.registry import MASKERS
from trainer.annotation.arguments import add_mask_arguments, mask_request
from trainer.annotation.masks import mask_work
from trainer.annotation.models import load_annotator
from trainer.annotation.originals import Originals
from trainer.annotation.work import carry_out
from trainer.cli import Verb
from trainer.cli.annotate import annotate


def _mask(options: argparse.Namespace) -> int:
    request = mask_request(options)
    originals = Originals(request.masks_folder or request.folder)
    load = partial(
        load_annotator,
        MASKERS[request.model],
        request.settings,
        device=request.device,
        may_download=options.download,
    )
    return annotate(
        lambda emit, should_stop: carry_out(
            mask_work(request, partial(load, emit=emit, should_stop=should_stop), originals),
            emit,
            originals,
            should_stop=should_stop,
        ),
        what="masks",
        as_events=options.events,
    )


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Writes a mask beside each image of a folder, as cat-masklabel.png beside cat.jpg. Existing masks stay, unless "
        "--mode is replace, add, subtract or blend; copies of the changed files are kept. Ctrl+C stops. Exit codes: 0 "
        "done, 1 some images could not be done, 2 the model cannot be used, 130 stopped."
    )
    add_mask_arguments(parser)


MASK = Verb("write masks for the images of a folder with a model", _arguments, _mask)
