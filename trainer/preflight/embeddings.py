"""Checks of embeddings before a run: placeholders that are words already, and files that are not embeddings.

Placeholders that are doubled or in no caption are found with the captions (`companions.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from modules.config.schema import Config
from modules.config.usage import embeddings_in_use
from modules.families.kinds.identify import identify
from modules.system.errors import DarkroomError
from modules.system.paths import from_root
from modules.system.problem import Problem, count, cut, shown
from trainer.preflight.tokenizer import read_tokenizer

_MAX_CHARS = 200


def problems_of_words(config: Config, *, is_new: bool) -> Iterator[Problem]:
    """Yield problems with the placeholders and files of embeddings; a resumed run has its own copies of the files."""
    if not embeddings_in_use(config):
        return
    yield from _existing_words(config)
    for index, word in enumerate(config.embeddings.words):
        if word.file.strip() and is_new:
            yield from _file(word.file.strip(), f"embeddings.words.{index}.file")


def _existing_words(config: Config) -> Iterator[Problem]:
    """Yield a warning for each placeholder that is a single token of the vocabulary."""
    try:
        tokenizer = read_tokenizer(config)
    except DarkroomError:  # the check of the captions reports it
        return
    for index, word in enumerate(config.embeddings.words):
        if word.placeholder.strip() and tokenizer.count(word.placeholder) == 1:
            yield Problem(
                f"embeddings.words.{index}.placeholder",
                f"{shown(word.placeholder)} is a word that the text encoder already knows. The embedding replaces it "
                "in every caption and prompt.",
                "warning",
                "Choose a placeholder that is not a real word, such as <my-word>.",
            )


def _file(name: str, path: str) -> Iterator[Problem]:
    kind = identify(from_root(name))
    text = cut(name, max_chars=_MAX_CHARS)
    if kind.facts.get("defect") == "missing":
        yield Problem(path, f"{text} does not exist.", advice="Choose an embedding, or leave it empty for a new one.")
    elif kind.kind != "embedding":
        yield Problem(
            path,
            f"{text} is not an embedding. {kind.sentence}",
            advice="Choose an embedding, or leave it empty for a new one.",
        )
    else:
        tokens = count(int(kind.facts["tokens"]), "token")
        yield Problem(path, f"The embedding continues {Path(name).name}, which has {tokens}.", "info")
