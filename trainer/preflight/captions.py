"""The length of the captions in tokens, counted with the model's own tokenizer and without torch."""

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

_USUAL_LIMIT_TOKENS = 3 * CHUNK_TOKENS  # the limit of other trainers and of many programs


def problems_of_captions(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield how many captions are longer than one chunk of the text encoder, and by how much.

    Nothing is truncated: a longer caption is encoded in chunks of 75 tokens (`modules/families/parts/clip_tokens.py`).
    """
    captions = sorted({c for e in training.examples for c in e.image.captions})
    if not captions:
        return
    folder = tokenizer_folder(config)
    try:
        tokenizer = load_tokenizer(config.model.family)(folder)
        lengths = [tokenizer.count(c) for c in captions]
    except Exception as error:  # noqa: BLE001 - the library raises a plain Exception for a damaged vocabulary
        yield Problem(
            "model.base_model",
            f"The tokenizer of the base model in {folder} cannot be read: {str(error) or type(error).__name__}.",
            advice="Download or copy the model again.",
        )
        return
    yield from _long_ones(lengths, tokenizer, captions)


def _long_ones(lengths: Sequence[int], tokenizer: ClipTokenizer, captions: Sequence[str]) -> Iterator[Problem]:
    longest = max(lengths)
    if longest <= CHUNK_TOKENS:
        return
    num_long, num_too_long = (sum(n > limit for n in lengths) for limit in (CHUNK_TOKENS, _USUAL_LIMIT_TOKENS))
    chunks = len(tokenizer.chunks(captions[lengths.index(longest)]))
    are, have = "is" if num_long == 1 else "are", "has" if num_too_long == 1 else "have"
    message = (
        f"{num_long:,} of {len(lengths):,} captions {are} longer than the {CHUNK_TOKENS} tokens of one text encoder "
        f"chunk. Nothing is truncated: they are encoded in several chunks (the longest, {longest:,} tokens, in "
        f"{chunks}). Programs limited to {CHUNK_TOKENS} tokens only see the beginning."
    )
    if num_too_long:
        message += f" {num_too_long:,} {have} more than {_USUAL_LIMIT_TOKENS} tokens, the limit of many programs."
    advice = "Put the important words first, or shorten the captions."
    yield Problem("concepts", message, "warning" if num_too_long else "info", advice)


def tokenizer_folder(config: Config) -> Path | None:
    """Return the tokenizer folder of a local base model; None to use the vocabulary shipped with the program."""
    encoders = FAMILIES[config.model.family].names_of("text_encoder")
    if not encoders or not config.model.base_model.strip():
        return None
    folder = from_root(config.model.base_model) / tokenizer_of(encoders[0])
    try:
        return folder if folder.is_dir() else None
    except (OSError, ValueError):
        return None
