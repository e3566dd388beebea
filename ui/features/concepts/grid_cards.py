"""The cards of concepts as a grid shows them. No Tk."""

from __future__ import annotations

from collections.abc import Mapping

from modules.system.problem import Severity
from ui.features.concepts.cards import ConceptCard
from ui.widgets.grid_card import GridCard, Line

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
