"""The cards of concepts: their states and filters; adding and cloning concepts."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modules.data.archives import ARCHIVE_SUFFIXES
from modules.data.concept import Concept
from modules.system.paths import as_config_path
from modules.system.problem import Severity, count
from ui.features.concepts.scanning import STOPPED, Result, ScanFacts
from ui.forms import items
from ui.forms.model import FormModel

State = Literal["all", "enabled", "disabled", "problems"]
STATES: Mapping[State, str] = {
    "all": "All concepts",
    "enabled": "Enabled",
    "disabled": "Disabled",
    "problems": "With problems",
}
ANY_KIND = ""


@dataclass(frozen=True, slots=True)
class CardProblem:
    """Something that is wrong with a concept, in a few words."""

    text: str
    severity: Severity = "warning"
    advice: str = ""

    @property
    def tip(self) -> str:
        """The text with what to do."""
        return f"{self.text}: {self.advice}" if self.advice else self.text


@dataclass(frozen=True, slots=True)
class ConceptCard:
    """What the card of the concept at an index shows.

    `share_captioned` is that of images with a caption; None while it is unknown, or for prompts.
    """

    index: int
    name: str
    kind: str
    kind_label: str
    path: str
    is_enabled: bool
    figures: str
    share_captioned: float | None = None
    captions: str = ""
    problems: tuple[CardProblem, ...] = ()
    images: tuple[Path, ...] = ()

    @property
    def tip(self) -> str:
        """The whole text, for a tooltip."""
        lines = [self.name, self.path, f"{self.kind_label}, {self.figures}", self.captions]
        return "\n".join([*filter(None, lines), *(f"• {p.tip}" for p in self.problems)])


@dataclass(frozen=True, slots=True)
class CardFilter:
    """Which cards are shown: those that contain all words of the text, of one type, in one state."""

    text: str = ""
    kind: str = ANY_KIND
    state: State = "all"

    @property
    def is_open(self) -> bool:
        """Whether it leaves all cards."""
        return self == CardFilter()

    def shows(self, card: ConceptCard) -> bool:
        """Return whether a card passes."""
        states = {"enabled": card.is_enabled, "disabled": not card.is_enabled, "problems": bool(card.problems)}
        searched = f"{card.name}\n{card.path}\n{card.kind_label}".casefold()
        is_found = all(word in searched for word in self.text.casefold().split())
        return is_found and self.kind in (ANY_KIND, card.kind) and states.get(self.state, True)


def card_of(
    index: int, concept: Concept, result: Result | None, facts: ScanFacts | None, *, kind_label: str
) -> ConceptCard:
    """Return the card of a concept; `result` and `facts` are those of its scan, None while it is unknown."""
    name = concept.name or Path(concept.path).name or "no folder"
    shared = (index, name, concept.kind, kind_label, concept.path, concept.enabled)
    if facts is None:
        figures = "scanning…" if result is None else str(result)
        is_wrong = result is not None and result != STOPPED and "hub" not in figures
        problems = (CardProblem(_sentence(concept, figures), "error"),) if is_wrong else ()
        return ConceptCard(*shared, figures, problems=problems)
    what = "image" if concept.has_images else "prompt"
    if concept.holds_pairs:
        what = "pair"
    share = facts.num_captioned / facts.num_images if concept.has_images and facts.num_images else None
    return ConceptCard(
        *shared,
        count(facts.num_images, what),
        share,
        _caption_words(facts) if share is not None else "",
        tuple(_problems(concept, facts, what)),
        facts.first if concept.has_images else (),
    )


def summary_of(cards: Sequence[ConceptCard], all_facts: Sequence[ScanFacts | None]) -> str:
    """Return the numbers of concepts, and of the images and prompts of the enabled ones."""
    if not cards:
        return ""
    pairs = [(c, f) for c, f in zip(cards, all_facts, strict=True) if c.is_enabled and f is not None]
    num_prompts = sum(f.num_images for c, f in pairs if c.kind == "prompts")
    num_images = sum(f.num_images for c, f in pairs if c.kind != "prompts")
    prompts = f", {count(num_prompts, 'prompt')}" if num_prompts else ""
    return f"{count(len(cards), 'concept')}, {count(num_images, 'image')}{prompts} in use"


def _caption_words(facts: ScanFacts) -> str:
    if facts.num_captioned == facts.num_images:
        return "all captioned"
    return f"{facts.num_captioned:,} of {facts.num_images:,} captioned"


def _problems(concept: Concept, facts: ScanFacts, what: str) -> list[CardProblem]:
    found = []
    if facts.num_images == 0:
        found.append(CardProblem(f"no {what}s found", "error"))
    if concept.zero_field:
        found.append(CardProblem(f"not used: {concept.zero_field.replace('_', ' ')} is 0"))
    if facts.num_skipped:
        found.append(CardProblem(f"{count(facts.num_skipped, 'file')} skipped"))
    if concept.has_images and facts.num_captioned < facts.num_images:
        advice = "write them, or have a model write them, with Captions and masks…"
        found.append(CardProblem(f"{facts.num_images - facts.num_captioned:,} without a caption", advice=advice))
    if facts.num_wrongly_encoded:
        found.append(CardProblem(f"{count(facts.num_wrongly_encoded, 'caption')} not UTF-8"))
    return found


def _sentence(concept: Concept, reason: str) -> str:
    if not concept.path.strip():
        return reason
    return f"{'folder' if concept.has_images else 'file'} {reason}"


_AT_ONCE = 50


def adding(
    paths: Iterable[Path], *, made: Callable[[int, Concept], object], add: Callable[[Sequence[Concept]], object]
) -> Iterator[None]:
    """Make a concept for each folder and archive, some per `next`, and add all with the last; another file stands for
    its folder. `made` is called with the number of each new concept.
    """
    new: dict[Path, Concept] = {}
    for number, path in enumerate(paths, 1):
        # `Path.is_dir` takes five times as long.
        is_own = os.path.isdir(path) or path.suffix.lower() in ARCHIVE_SUFFIXES  # noqa: PTH112
        source = path if is_own else path.parent
        if source not in new:
            new[source] = concept = Concept(path=as_config_path(source))
            made(len(new) - 1, concept)
        if number % _AT_ONCE == 0:
            yield
    if new:
        add(tuple(new.values()))


def clone(form: FormModel, path: str, indices: Collection[int]) -> list[int]:
    """Insert a copy after each concept, as one undo step; return the indexes of the copies.

    Each copy gets another augmentation seed, so that its augmentations differ from those of the original.
    """
    result: list[Concept] = []
    copies: list[int] = []
    concepts = items.items_of(form, path)
    seeds = {c.seed for c in concepts if isinstance(c, Concept)}
    for index, concept in enumerate(concepts):
        assert isinstance(concept, Concept)
        result.append(concept)
        if index in indices:
            seed = form.value("general.seed") if concept.seed is None else concept.seed
            while seed in seeds or seed == form.value("general.seed"):
                seed = (seed + 1) % 2**31
            seeds.add(seed)
            copies.append(len(result))
            result.append(concept.model_copy(update={"seed": seed}))
    form.edit(path, tuple(result))
    return copies
