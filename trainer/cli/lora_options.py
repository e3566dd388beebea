"""Options that several LoRA verbs share: files with strengths, and ranks."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from modules.system.errors import DarkroomError
from modules.system.paths import from_caller

if TYPE_CHECKING:  # torch is imported when a tool runs
    from modules.adapters.tools.low_rank import RankChoice
    from modules.adapters.tools.opening import WeightedFile
    from trainer.tools.lora import Output


def add_files_argument(parser: argparse.ArgumentParser, *, what: str) -> None:
    """Add the files with their strengths."""
    parser.add_argument(
        "files",
        nargs="+",
        metavar="LORA[:STRENGTH]",
        help=f"{what}, each with its strength behind a colon (default: 1)",
    )


def weighted_files(words: list[str]) -> list[WeightedFile]:
    """Return files with their strengths. Raises DarkroomError for a strength that is not a number."""
    from modules.adapters.tools.opening import WeightedFile

    return [WeightedFile(from_caller(path), strength) for path, strength in map(split_strength, words)]


def split_strength(word: str) -> tuple[str, float]:
    """Return a path and the strength behind it, as in `style.safetensors:0.8`; 1 without one.

    Raises DarkroomError for a strength that is not a number.
    """
    path, colon, strength = word.rpartition(":")
    if not colon or "/" in strength or "\\" in strength or (len(path) == 1 and path.isalpha()):  # C:\\...
        return word, 1.0
    try:
        return path, float(strength)
    except ValueError:
        raise DarkroomError(
            f"{strength!r} in {word!r} is not a strength.", advice="Write it as style.safetensors:0.8."
        ) from None


def add_rank_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --rank, --conv-rank and --energy."""
    parser.add_argument("--rank", type=_positive, metavar="N", help="the largest rank of a layer")
    parser.add_argument("--conv-rank", type=_positive, metavar="N", help="that of kernels over 1x1 (default: --rank)")
    parser.add_argument(
        "--energy",
        type=_share,
        metavar="SHARE",
        help="keep as many ranks as hold this share of the squared singular values, such as 0.95",
    )


def rank_choice(options: argparse.Namespace) -> RankChoice | None:
    """Return the choice of ranks; None without any."""
    if options.rank is None and options.energy is None and options.conv_rank is None:
        return None
    from modules.adapters.tools.low_rank import RankChoice

    return RankChoice(options.rank, options.energy, options.conv_rank)


def required_choice(options: argparse.Namespace) -> RankChoice:
    """Return the choice of ranks. Raises DarkroomError without any."""
    choice = rank_choice(options)
    if choice is None:
        raise DarkroomError("No rank is given.", advice="Add --rank, such as --rank 16, or --energy 0.95.")
    return choice


def output_of(options: argparse.Namespace) -> Output:
    """Return where and how a tool writes."""
    from trainer.tools.lora import Output

    return Output(from_caller(options.out), options.dtype, options.overwrite)


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return value


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError("must be over 0 and at most 1")
    return value
