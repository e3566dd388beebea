"""Requests as command lines, and back: the window starts its child with the same options that a user types."""

from __future__ import annotations

import argparse
from pathlib import Path

from modules.annotators.protocol import CaptionSettings, MaskSettings
from modules.annotators.registry import CAPTIONERS, MASKERS
from modules.annotators.results import CAPTION_MODES, MASK_MODES
from modules.system.paths import from_caller
from trainer.annotation.captions import CaptionRequest
from trainer.annotation.masks import MaskRequest

_DETAILS = ("short", "detailed", "long")


def add_caption_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of captions."""
    default, settings = CaptionRequest(Path(), ""), CaptionSettings()
    _add_shared(parser, list(CAPTIONERS), list(CAPTION_MODES), "captions")
    parser.add_argument("--extension", choices=(".txt", ".caption"), default=default.extension)
    parser.add_argument("--prefix", default="", help="text before each caption, such as 'zog, '")
    parser.add_argument("--suffix", default="", help="text after each caption")
    parser.add_argument(
        "--threshold", type=float, default=settings.threshold, help="least probability of a tag (%(default)s)"
    )
    parser.add_argument(
        "--character-threshold",
        type=float,
        default=settings.character_threshold,
        help="least probability of a character's name (%(default)s)",
    )
    parser.add_argument(
        "--exclude-tags", metavar="TAGS", default="", help="tags that are never written, separated by commas"
    )
    parser.add_argument("--keep-underscores", action="store_true", help="write long_hair, not long hair")
    parser.add_argument("--initial", default="", help="the beginning of a caption, which the model continues")
    parser.add_argument("--detail", choices=_DETAILS, default=settings.detail, help="how much the caption describes")


def caption_request(options: argparse.Namespace) -> CaptionRequest:
    """Return the request of parsed options."""
    return CaptionRequest(
        from_caller(options.folder),
        options.model,
        options.mode,
        options.include_subfolders,
        options.extension,
        options.prefix,
        options.suffix,
        CaptionSettings(
            options.threshold,
            options.character_threshold,
            _parts(options.exclude_tags),
            options.keep_underscores,
            options.initial,
            options.detail,
        ),
        options.device,
    )


def caption_arguments(request: CaptionRequest, *, may_download: bool) -> list[str]:
    """Return the arguments of the verb for a request."""
    settings = request.settings
    return [
        *_shared("caption", request, may_download=may_download),
        f"--extension={request.extension}",
        f"--prefix={request.prefix}",
        f"--suffix={request.suffix}",
        f"--threshold={settings.threshold}",
        f"--character-threshold={settings.character_threshold}",
        f"--exclude-tags={', '.join(settings.excluded_tags)}",
        *(["--keep-underscores"] if settings.keep_underscores else []),
        f"--initial={settings.initial}",
        f"--detail={settings.detail}",
    ]


def add_mask_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of masks."""
    default, settings = MaskRequest(Path(), ""), MaskSettings()
    _add_shared(parser, list(MASKERS), list(MASK_MODES), "masks")
    parser.add_argument("--masks-folder", default="", help="write the masks here instead of beside the images")
    parser.add_argument("--prompts", metavar="TEXTS", default="", help="what to mask in, separated by commas")
    parser.add_argument("--colour", default=settings.colour, help="the colour to mask out (%(default)s)")
    parser.add_argument(
        "--tolerance", type=int, default=settings.tolerance, help="largest difference from the colour (%(default)s)"
    )
    parser.add_argument(
        "--threshold", type=float, default=settings.threshold, help="least probability of a white pixel (%(default)s)"
    )
    parser.add_argument(
        "--expand", type=int, metavar="PX", default=default.expand_px, help="grow the white (%(default)s px)"
    )
    parser.add_argument(
        "--smooth", type=int, metavar="PX", default=default.smooth_px, help="radius of the soft edge (%(default)s px)"
    )
    parser.add_argument(
        "--share", type=float, default=default.share, help="how much of the new mask counts, 0 to 1 (%(default)s)"
    )
    parser.add_argument("--invert", action="store_true", help="mask out what is found")


def mask_request(options: argparse.Namespace) -> MaskRequest:
    """Return the request of parsed options."""
    return MaskRequest(
        from_caller(options.folder),
        options.model,
        options.mode,
        options.include_subfolders,
        from_caller(options.masks_folder) if options.masks_folder else None,
        options.expand,
        options.smooth,
        options.share,
        options.invert,
        MaskSettings(_parts(options.prompts), options.colour, options.tolerance, options.threshold),
        options.device,
    )


def mask_arguments(request: MaskRequest, *, may_download: bool) -> list[str]:
    """Return the arguments of the verb for a request."""
    settings = request.settings
    return [
        *_shared("mask", request, may_download=may_download),
        f"--masks-folder={request.masks_folder or ''}",
        f"--prompts={', '.join(settings.prompts)}",
        f"--colour={settings.colour}",
        f"--tolerance={settings.tolerance}",
        f"--threshold={settings.threshold}",
        f"--expand={request.expand_px}",
        f"--smooth={request.smooth_px}",
        f"--share={request.share}",
        *(["--invert"] if request.is_inverted else []),
    ]


def _add_shared(parser: argparse.ArgumentParser, models: list[str], modes: list[str], what: str) -> None:
    parser.add_argument("folder", metavar="FOLDER", help="a folder of images")
    parser.add_argument("--model", choices=models, default=models[0], help=f"{', '.join(models)} (%(default)s)")
    parser.add_argument(
        "--mode", choices=modes, default=modes[0], help=f"what to do with existing {what}: {', '.join(modes)}"
    )
    parser.add_argument("--include-subfolders", action="store_true", help="also the images in subfolders")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps")
    parser.add_argument("--download", action="store_true", help="download the model's files if they are missing")


def _shared(verb: str, request: CaptionRequest | MaskRequest, *, may_download: bool) -> list[str]:
    return [
        verb,
        f"--model={request.model}",
        f"--mode={request.mode}",
        *(["--include-subfolders"] if request.include_subfolders else []),
        f"--device={request.device}",
        *(["--download"] if may_download else []),
        str(request.folder),
    ]


def _parts(text: str) -> tuple[str, ...]:
    return tuple(part for piece in text.split(",") if (part := piece.strip()))
