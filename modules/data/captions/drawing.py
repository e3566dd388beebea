"""The final caption of each use of an image: chosen, changed, or dropped, all from counters."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from modules.data.captions.operations import CaptionRules, final_text
from modules.data.captions.settings import choose_line, lines_in_use
from modules.system.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class CaptionDropout:
    """The probabilities of the empty prompt: for all text encoders together, or of `second` and `third` separately.

    The first probability applies to the first text encoder, and to those without a probability of their own.
    """

    first: float = 0.0
    second: float | None = None
    third: float | None = None


_ALL = frozenset({0, 1, 2, 3})  # no family has more text encoders


@dataclass(frozen=True, slots=True)
class CaptionUse:
    """One use of an image: the counters its caption is drawn from.

    `name` is the image's file name, `use` the number of its earlier uses in the run.
    """

    run_seed: int
    epoch: int
    example: int
    repeat: int
    name: str
    use: int = 0


@dataclass(frozen=True, slots=True)
class DrawnCaption:
    """The caption of one use, and the indices of the text encoders that get the empty prompt in its place."""

    text: str
    empty_for: frozenset[int] = frozenset()


def draw_caption(
    texts: tuple[str, ...], rules: CaptionRules, use: CaptionUse, *, dropout: CaptionDropout, draws_anew: bool
) -> DrawnCaption:
    """Return the caption of one use of an image with these texts.

    The operations are drawn anew for each use with `draws_anew`; otherwise the variations are used in turn:
    exactly the texts of `cached_texts`. The counters do not depend on the position of the image in the concept.
    """
    generator = random.Random(derive_seed(use.run_seed, "caption", use.epoch, use.example, use.repeat))
    empty_for = _draw_dropped(dropout, use, generator)
    if empty_for == _ALL:
        return DrawnCaption("")
    line = choose_line(len(texts), rules.choice, generator, use=use.use) if texts else 0
    counters = (use.epoch, use.repeat) if draws_anew else (_variation(len(texts), rules, use.use), 0)
    text = _change_caption(texts, line, rules, use.name, counters, run_seed=use.run_seed)
    return DrawnCaption(text, empty_for if text else frozenset())


def cached_texts(texts: tuple[str, ...], rules: CaptionRules, *, name: str, run_seed: int) -> Iterable[str]:
    """Return every text that `draw_caption` may return without `draws_anew` and caption dropout."""
    if rules.is_plain:
        return texts[: len(lines_in_use(len(texts), rules.choice))] or ("",)
    return _changed_texts(texts, rules, name, run_seed=run_seed)


def _changed_texts(texts: tuple[str, ...], rules: CaptionRules, name: str, *, run_seed: int) -> Iterator[str]:
    for line in lines_in_use(len(texts), rules.choice) if texts else (0,):
        is_random = bool(texts) and rules.is_random(texts[line])
        for variation in range(rules.variations if is_random else 1):
            yield _change_caption(texts, line, rules, name, (variation, 0), run_seed=run_seed)


def _variation(num_lines: int, rules: CaptionRules, use: int) -> int:
    """Return the variation of one use: the next one once each line had its turn, where lines are used in turn."""
    rounds = use // num_lines if rules.choice == "in_turn" and num_lines else use
    return rounds % rules.variations


def _change_caption(
    texts: tuple[str, ...], line: int, rules: CaptionRules, name: str, counters: tuple[int, int], *, run_seed: int
) -> str:
    if rules.is_plain:
        return texts[line] if texts else ""
    seed = run_seed if rules.seed is None else rules.seed
    number = int.from_bytes(hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=7).digest(), "little")
    generator = random.Random(derive_seed(seed, "caption operations", number, line, *counters))
    return final_text(texts[line] if texts else "", rules, generator)


def _draw_dropped(dropout: CaptionDropout, use: CaptionUse, generator: random.Random) -> frozenset[int]:
    """Return the indices of the text encoders whose caption is dropped; all where there is one draw for all."""
    is_first = dropout.first > 0 and generator.random() < dropout.first
    dropped = {0} if is_first else set()
    for index, probability in ((1, dropout.second), (2, dropout.third), (3, None)):
        other = random.Random(
            derive_seed(use.run_seed, f"caption dropout {index + 1}", use.epoch, use.example, use.repeat)
        )
        if is_first if probability is None else probability > 0 and other.random() < probability:
            dropped.add(index)
    return frozenset(dropped)
