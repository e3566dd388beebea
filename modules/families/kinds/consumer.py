"""A program that loads adapters, as rules about the layers of a file. The facts are in `consumers`. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from modules.families.kinds.adapter_contents import AdapterContents, FileLayer, Sort
from modules.families.kinds.layer_traits import Trait
from modules.families.kinds.stored_alphas import Alpha
from modules.formats.adapter_forms import Naming


@dataclass(frozen=True, slots=True)
class Rule:
    """Whether a program loads the layers that fit all of these conditions; an empty condition fits every layer.

    `part` is the layer's part of the model, and `path` a regular expression for its whole path in diffusers; `alphas`
    compares its alpha with those of its part. `usual` is whether the layer is named as kohya's trainers name it for its
    model, `mixed` whether the file has both namings of the UNet. `why` follows the name of the program. `places`: the
    program has a place for the layers that it does not load correctly. `trait` is one of the layer's.
    """

    loads: bool | None
    namings: tuple[Naming, ...] = ()
    sorts: tuple[Sort, ...] = ()
    alphas: tuple[Alpha, ...] = ()
    trait: Trait | None = None
    part: str = ""
    path: str = ""
    usual: bool | None = None
    norms: bool | None = None
    mixed: bool | None = None
    why: str = ""
    places: bool = False

    def fits(self, layer: FileLayer, *, is_mixed: bool) -> bool:
        """Whether the rule is about a layer; `is_mixed` is the file's."""
        return (
            (not self.namings or layer.naming in self.namings)
            and (not self.sorts or layer.sort in self.sorts)
            and (not self.alphas or layer.alpha in self.alphas)
            and (self.trait is None or self.trait in layer.traits)
            and (not self.part or self.part == layer.part)
            and (not self.path or re.fullmatch(self.path, layer.path) is not None)
            and (self.usual is None or self.usual == layer.is_usual)
            and (self.norms is None or self.norms == layer.is_norm)
            and (self.mixed is None or self.mixed == is_mixed)
        )


@dataclass(frozen=True, slots=True)
class Consumer:
    """A program that loads adapters.

    `refuses(contents)` returns why it refuses a whole file, or "". With more than `tolerates` tensors that it cannot
    place it refuses the file, too. `embeddings` is what it does with bundled embeddings: loads them, and a note.
    `any_size`: it loads adapters for models of other sizes than the published ones. `is_main` is false for a program
    that is named only where it differs from the others.
    """

    program: str
    version: str
    rules: tuple[Rule, ...]
    refuses: Callable[[AdapterContents], str] = lambda contents: ""
    tolerates: int | None = None
    embeddings: tuple[bool, str] = (True, "")
    any_size: bool = False
    is_main: bool = True

    def verdict(self, layer: FileLayer, *, is_mixed: bool = False) -> Rule:
        """Return the rule that decides about a layer; `is_mixed` is the file's."""
        return next((rule for rule in self.rules if rule.fits(layer, is_mixed=is_mixed)), _UNKNOWN_NAME)


_UNKNOWN_NAME = Rule(False, why="does not know these names")
