"""Colour: all pixels except those of one colour, such as a plain background. Needs no model."""

from __future__ import annotations

from modules.annotators.spec import MaskerSpec

SPEC = MaskerSpec(
    "colour",
    "Colour",
    "Everything except one colour, such as that of a plain background. Needs no model.",
    "modules.annotators.models.colour:make",
    None,
    "",
    frozenset({"colour", "tolerance"}),
)
