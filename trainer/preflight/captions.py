"""How long the captions are in tokens, counted with the model's own vocabulary and without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from modules.config.schema import Config
from modules.data.dataset import Dataset
from modules.families.parts.clip_tokens import CHUNK_TOKENS, ClipTokenizer
from modules.families.registry import FAMILIES, load_tokenizer
from modules.families.spec import tokenizer_of
from modules.system.paths import from_root
from modules.system.problem import Problem

_USUAL_LIMIT_TOKENS = 3 * CHUNK_TOKENS  # what other trainers take at most, and many programs encode


def problems_of_captions(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield how many captions are longer than one piece that the text encoder reads, and by how much.

    Nothing is cut off: a longer caption is encoded in pieces of 75 tokens (`modules/families/parts/clip_tokens.py`).
    """
    captions = sorted({c for e in training.examples for c in e.image.captions})
    if not captions:
        return
    folder = tokenizer_folder(config)
    try:
        tokenizer = load_tokenizer(config.model.family)(folder)
        lengths = [tokenizer.count(c) for c in captions]
    except Exception as error:  # noqa: BLE001 - the library raises nothing more special for a damaged vocabulary
        yield Problem(
            "model.base_model",
            f"The vocabulary of the base model in {folder} cannot be read: {str(error) or type(error).__name__}.",
            advice="Download or copy the model again.",
        )
        return
    yield from _long_ones(lengths, tokenizer, captions)


def _long_ones(lengths: Sequence[int], tokenizer: ClipTokenizer, captions: Sequence[str]) -> Iterator[Problem]:
    longest = max(lengths)
    if longest <= CHUNK_TOKENS:
        return
    num_long, num_too_long = (sum(n > limit for n in lengths) for limit in (CHUNK_TOKENS, _USUAL_LIMIT_TOKENS))
    pieces = len(tokenizer.chunks(captions[lengths.index(longest)]))
    are, have = "is" if num_long == 1 else "are", "has" if num_too_long == 1 else "have"
    message = (
        f"{num_long:,} of {len(lengths):,} captions {are} longer than the {CHUNK_TOKENS} tokens that the text encoder "
        f"reads at once. Nothing is cut off: such a caption is encoded in pieces, the longest, of {longest:,} tokens, "
        f"in {pieces}. Programs that read {CHUNK_TOKENS} tokens only see the beginning."
    )
    if num_too_long:
        message += f" {num_too_long:,} {have} more than {_USUAL_LIMIT_TOKENS}, where many programs end."
    advice = "Put what matters first, or shorten them."
    yield Problem("concepts", message, "warning" if num_too_long else "info", advice)


def tokenizer_folder(config: Config) -> Path | None:
    """Return the folder of the tokenizer that a local base model brings along; None for the shipped vocabulary."""
    encoders = FAMILIES[config.model.family].names_of("text_encoder")
    if not encoders or not config.model.base_model.strip():
        return None
    folder = from_root(config.model.base_model) / tokenizer_of(encoders[0])
    try:
        return folder if folder.is_dir() else None
    except (OSError, ValueError):
        return None
