"""The cards of concepts: what each shows, which of them a filter leaves, and how the grid draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modules.data.concept import Concept
from modules.system.problem import Severity, count
from ui.features.concepts.scanning import STOPPED, Result, ScanFacts, Scans
from ui.widgets.grid_card import GridCard, Line

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
    """The content of the card of the concept at an index.

    `share_captioned` is the share of images with a caption; None while it is unknown, or for prompts.
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
    """A filter of cards: by the words of a text, by type and by state."""

    text: str = ""
    kind: str = ANY_KIND
    state: State = "all"

    @property
    def is_open(self) -> bool:
        """Whether all cards pass."""
        return self == CardFilter()

    def shows(self, card: ConceptCard) -> bool:
        """Return whether a card passes."""
        states = {"enabled": card.is_enabled, "disabled": not card.is_enabled, "problems": bool(card.problems)}
        text = f"{card.name}\n{card.path}\n{card.kind_label}".casefold()
        matches = all(word in text for word in self.text.casefold().split())
        return matches and self.kind in (ANY_KIND, card.kind) and states.get(self.state, True)


def card_of(
    index: int, concept: Concept, result: Result | None, facts: ScanFacts | None, *, kind_label: str
) -> ConceptCard:
    """Return the card of a concept; `result` and `facts` come from its scan, None while it is unknown."""
    name = concept.label
    common = (index, name, concept.kind, kind_label, concept.path, concept.enabled)
    if facts is None:
        figures = "scanning…" if result is None else str(result)
        is_wrong = result is not None and result != STOPPED and "hub" not in figures
        problems = (CardProblem(_sentence(concept, figures), "error"),) if is_wrong else ()
        return ConceptCard(*common, figures, problems=problems)
    what = "image" if concept.has_images else "prompt"
    if concept.holds_pairs:
        what = "pair"
    share = facts.num_captioned / facts.num_images if concept.has_images and facts.num_images else None
    return ConceptCard(
        *common,
        count(facts.num_images, what) + (f", {facts.num_excluded:,} excluded" if facts.num_excluded else ""),
        share,
        _describe_captions(facts) if share is not None else "",
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


def _describe_captions(facts: ScanFacts) -> str:
    if facts.num_captioned == facts.num_images:
        return "all captioned"
    return f"{facts.num_captioned:,} of {facts.num_images:,} captioned"


def _problems(concept: Concept, facts: ScanFacts, what: str) -> list[CardProblem]:
    problems = []
    if facts.num_images == 0:
        problems.append(CardProblem(f"no {what}s found", "error"))
    if concept.zero_field:
        problems.append(CardProblem(f"not used: {concept.zero_field.replace('_', ' ')} is 0"))
    if facts.num_skipped:
        problems.append(CardProblem(f"{count(facts.num_skipped, 'file')} skipped"))
    if concept.has_images and facts.num_captioned < facts.num_images:
        advice = "write them, or have a model write them, with Captions and masks…"
        problems.append(CardProblem(f"{facts.num_images - facts.num_captioned:,} without a caption", advice=advice))
    if facts.num_wrongly_encoded:
        problems.append(CardProblem(f"{count(facts.num_wrongly_encoded, 'caption')} not UTF-8"))
    return problems


def _sentence(concept: Concept, reason: str) -> str:
    if not concept.path.strip():
        return reason
    return f"{'folder' if concept.has_images else 'file'} {reason}"


@dataclass(frozen=True, slots=True)
class _CardEntry:
    concept: Concept
    result: Result | None
    card: ConceptCard
    grid_card: GridCard


class CardList:
    """Call `follow` with the concepts and `choose` with a filter: `cards` are all cards, `visible` those that pass."""

    def __init__(self, scans: Scans, kind_labels: Mapping[str, str]) -> None:
        self.concepts: Sequence[Concept] | None = None
        self.cards: list[ConceptCard] = []
        self.visible: list[ConceptCard] = []
        self._scans = scans
        self._kind_labels = kind_labels
        self._entries: dict[int, _CardEntry] = {}

    def follow(self, concepts: Sequence[Concept]) -> None:
        """Update the cards from the concepts and their scans."""
        self.concepts = concepts
        self.cards = [self.make(index, concept) for index, concept in enumerate(concepts)]

    def choose(self, card_filter: CardFilter) -> list[GridCard]:
        """Return the cards that a filter leaves, as the grid draws them."""
        self.visible = (
            list(self.cards) if card_filter.is_open else [card for card in self.cards if card_filter.shows(card)]
        )
        return [self._entries[card.index].grid_card for card in self.visible]

    def make(self, index: int, concept: Concept) -> ConceptCard:
        """Return the card of a concept; it is made anew for another scan."""
        result, entry = self._scans.of(concept), self._entries.get(index)
        if entry is None or entry.concept is not concept or entry.result is not result:
            label = self._kind_labels.get(concept.kind, concept.kind)
            card = card_of(index, concept, result, self._scans.facts_of(concept), kind_label=label)
            self._entries[index] = entry = _CardEntry(concept, result, card, grid_card_of(card))
        return entry.card

    @property
    def num_disabled(self) -> int:
        """How many concepts are disabled."""
        return sum(not card.is_enabled for card in self.cards)

    @property
    def summary(self) -> str:
        """The numbers of concepts, images and prompts."""
        return summary_of(self.cards, [self._scans.facts_of(concept) for concept in self.concepts or ()])


_SEVERITY_COLOURS: Mapping[Severity, str] = {"error": "error", "warning": "warning", "info": "muted"}


def grid_card_of(card: ConceptCard) -> GridCard:
    """Return the title, the lines, the bar and the image of a concept's card."""
    problem = card.problems[0] if card.problems else None
    more = f" and {len(card.problems) - 1} more" if len(card.problems) > 1 else ""
    lines = [Line(f"{card.kind_label} · {card.figures}")]
    if problem is not None:
        lines.append(Line(f"{problem.text}{more}", _SEVERITY_COLOURS[problem.severity]))
    elif card.captions:
        lines.append(Line(card.captions, "muted"))
    return GridCard(
        card.name, card.is_enabled, tuple(lines), card.share_captioned, card.images or None, note=_note(card)
    )


def _note(card: ConceptCard) -> str:
    return "prompts without images" if card.kind == "prompts" else card.figures
