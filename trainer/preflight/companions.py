"""What the images' folders hold beside images: masks, and captions that name the words to be learned."""

from __future__ import annotations

from collections.abc import Iterator

from modules.config.schema import Config
from modules.data.dataset import Dataset
from modules.system.problem import Problem, shown


def problems_of_companions(config: Config, training: Dataset) -> Iterator[Problem]:
    """Yield masked training without masks, and new words that no caption holds."""
    yield from _masks(config, training)
    yield from _words(config, training)


def _masks(config: Config, training: Dataset) -> Iterator[Problem]:
    if not config.masks.enabled or not training.examples:
        return
    images = [e.image.path for e in training.examples]
    num_without = sum(not p.with_name(f"{p.stem}-masklabel.png").is_file() for p in images)
    if num_without == len(images):
        yield Problem(
            "masks.enabled",
            f"Masked regions are to be learned from, but none of {len(images):,} images has a mask.",
            advice=f"Put a mask beside each, as {images[0].stem}-masklabel.png, or switch this off.",
        )
    elif num_without:
        message = f"{num_without:,} of {len(images):,} images have no mask and count as a whole."
        yield Problem("masks.enabled", message, "info")


def _words(config: Config, training: Dataset) -> Iterator[Problem]:
    words = [w.placeholder.strip() for w in config.embeddings.words]
    captions = {c for e in training.examples for c in e.image.captions}
    for index, word in enumerate(words):
        path = f"embeddings.words.{index}.placeholder"
        if not word:
            yield Problem(path, "The word has no placeholder.", advice="Name one, as <my-word>.")
        elif word in words[:index]:
            yield Problem(
                path,
                f"{shown(word)} stands for word {words.index(word) + 1} already: nobody can tell the two apart in a "
                "caption.",
                advice="Give each word a placeholder of its own.",
            )
        elif captions and config.embeddings.words[index].train and not any(word in c for c in captions):
            yield Problem(
                path,
                f"{shown(word)} is to be learned, but none of {len(captions):,} captions holds it.",
                advice="Write it into captions where it is shown, or switch its training off.",
            )
