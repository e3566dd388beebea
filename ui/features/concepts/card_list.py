"""The cards of the Concepts page for the grid: their texts and images, made when they are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from modules.data.concept import Concept
from modules.system.problem import Severity
from ui.features.concepts.cards import CardFilter, ConceptCard, card_of, summary_of
from ui.features.concepts.scanning import Result, Scans
from ui.widgets.grid_card import GridCard, Line


@dataclass(frozen=True, slots=True)
class _Made:
    concept: Concept
    result: Result | None
    card: ConceptCard
    drawn: GridCard


class CardList:
    """Call `follow` with the concepts and `choose` with a filter; then `cards` are all cards and `shown` those left."""

    def __init__(self, scans: Scans, kind_labels: Mapping[str, str]) -> None:
        self.concepts: Sequence[Concept] | None = None
        self.cards: list[ConceptCard] = []
        self.shown: list[ConceptCard] = []
        self._scans = scans
        self._kind_labels = kind_labels
        self._made: dict[int, _Made] = {}

    def follow(self, concepts: Sequence[Concept]) -> None:
        """Take the concepts and what is known of their scans."""
        self.concepts = concepts
        self.cards = [self.make(index, concept) for index, concept in enumerate(concepts)]

    def choose(self, wanted: CardFilter) -> list[GridCard]:
        """Return the cards that a filter leaves, as the grid draws them."""
        self.shown = list(self.cards) if wanted.is_open else [card for card in self.cards if wanted.shows(card)]
        return [self._made[card.index].drawn for card in self.shown]

    def make(self, index: int, concept: Concept) -> ConceptCard:
        """Return the card of a concept; it is made anew for another scan."""
        result, known = self._scans.of(concept), self._made.get(index)
        if known is None or known.concept is not concept or known.result is not result:
            label = self._kind_labels.get(concept.kind, concept.kind)
            card = card_of(index, concept, result, self._scans.facts_of(concept), kind_label=label)
            self._made[index] = known = _Made(concept, result, card, grid_card_of(card))
        return known.card

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
