"""The concepts of the config as the Concepts page shows them: cards, filter and scans, and the commands on them.

The page gives concepts by their index in the config; cards are what the filter leaves of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from modules.config.usage import learns_from
from modules.data.archives import ARCHIVE_SUFFIXES
from modules.data.concept import Concept
from modules.data.pairs import CHOSEN_FOLDER, PAIR_SUFFIXES, REJECTED_FOLDER
from modules.data.prompts import PROMPT_SUFFIXES
from modules.objectives.spec import LearnsFrom
from modules.system.paths import as_config_path, folder_for_images, from_root
from modules.system.problem import count
from ui.features.concepts.cards import CardFilter, CardList, ConceptCard
from ui.features.concepts.scanning import Scans
from ui.forms import items
from ui.forms.model import FormModel
from ui.loop.interaction import FileKind
from ui.loop.pump import Pump
from ui.loop.signal import Signal
from ui.widgets.grid_card import GridCard

PATH = "concepts"
CAPTIONS_LABEL = "Captions and masks…"
_NOTHING_YET: Mapping[LearnsFrom, str] = {
    "images": "Add the folders that contain your images.\nYou can choose several at once, or drop them here.",
    "pairs": "Add a folder with the subfolders chosen and rejected, or a table of pairs.\n"
    "The two images of a pair have the same name.",
    "prompts": "Add a text file with one prompt per line, or drop it here.\n"
    "Folders of images with captions will do, too: only the captions are used.",
}
_FILES: Mapping[LearnsFrom, tuple[str, Collection[str]]] = {
    "images": ("Archives of images", ARCHIVE_SUFFIXES),
    "pairs": ("Tables of pairs", PAIR_SUFFIXES),
    "prompts": ("Files of prompts", PROMPT_SUFFIXES),
}
_NO_MATCH = "No concept matches the search and the filters."
_AT_ONCE = 50  # dropped files that are looked at in one go
_MANY = 200  # new concepts
_REFRESH_SECONDS = 0.2  # while many folders are scanned


class ConceptsModel:
    """Call `follow` first. `changed` is emitted when the cards show something else, `added` with new concepts."""

    def __init__(self, form: FormModel, pump: Pump, kind_labels: Mapping[str, str]) -> None:
        self.scans = Scans(pump.background)
        self.filter = CardFilter()
        self.grid_cards: list[GridCard] = []  # the cards that the filter leaves, as the grid draws them
        self.changed: Signal[[]] = Signal()
        self.added: Signal[[list[int]]] = Signal()
        self.filter_cleared: Signal[[]] = Signal()
        self._form = form
        self._pump = pump
        self._list = CardList(self.scans, kind_labels)
        form.watch(PATH, self.follow)
        form.watch("training.method", self.refresh)  # the note of an empty page

    # -- what is shown

    @property
    def concepts(self) -> tuple[Concept, ...]:
        """The concepts of the config."""
        concepts: tuple[Any, ...] = items.items_of(self._form, PATH)
        return concepts

    @property
    def cards(self) -> list[ConceptCard]:
        """The cards of all concepts."""
        return self._list.cards

    @property
    def visible(self) -> list[ConceptCard]:
        """The cards that the filter leaves."""
        return self._list.visible

    @property
    def num_disabled(self) -> int:
        """How many concepts are disabled."""
        return self._list.num_disabled

    @property
    def summary(self) -> str:
        """The numbers of concepts, images and prompts."""
        return self._list.summary

    @property
    def empty_note(self) -> str:
        """Why no card is shown; empty if there are some."""
        if self.visible:
            return ""
        return _NO_MATCH if self.cards else _NOTHING_YET[learns_from(self._form.config)]

    def follow(self) -> None:
        """Show the concepts and scan the new ones."""
        self.scans.keep_only(self.concepts)
        for concept in self.concepts:
            self.scans.want(concept, self._refresh_soon)
        self.refresh()

    def scan_again(self) -> None:
        """Look at all folders again: their files may have changed."""
        self.scans.forget()
        self.follow()

    def refresh(self) -> None:
        """Make the cards anew of which something has changed."""
        self._list.follow(self.concepts)
        self.grid_cards = self._list.choose(self.filter)
        self.changed()

    def use_filter(self, card_filter: CardFilter) -> bool:
        """Show the cards that a filter leaves; return whether it is another one."""
        is_other = card_filter != self.filter
        if is_other:
            self.filter = card_filter
            self.refresh()
        return is_other

    def prefer(self, numbers: Iterable[int]) -> None:
        """Scan the folders of some cards first."""
        concepts = self.concepts
        self.scans.prefer(concepts[self.visible[number].index] for number in numbers)

    def indices_of(self, numbers: Iterable[int]) -> list[int]:
        """Return the concepts of cards."""
        return [self.visible[number].index for number in numbers]

    def reveal(self, indices: Collection[int]) -> list[int]:
        """Return the numbers of the cards of concepts; a filter that hides one of them is cleared."""
        if self._list.concepts is not self.concepts:
            self.refresh()
        if not {*indices} <= {card.index for card in self.visible}:
            self.filter = CardFilter()
            self.refresh()
            self.filter_cleared()
        return [number for number, card in enumerate(self.visible) if card.index in indices]

    def tip(self, number: int | None) -> str:
        """Return the whole text of a card; empty for none."""
        return self.visible[number].tip if number is not None and number < len(self.visible) else ""

    def locate(self, path: str) -> tuple[int | None, bool] | None:
        """Return the concept that a path leads to, and whether it leads to a field of it.

        The concept is None for the list itself; None is returned for a path that leads elsewhere.
        """
        if path != PATH and not path.startswith(f"{PATH}."):
            return None
        index, _, field = path.removeprefix(PATH).removeprefix(".").partition(".")
        if not index.isdigit():
            return None, False
        return (int(index), bool(field)) if int(index) < len(self.concepts) else None

    # -- commands

    @property
    def folder_to_start(self) -> Path:
        """The folder in which a dialog for new ones opens: next to the newest concept's."""
        return folder_for_images(c.path for c in self.concepts)

    @property
    def file_kinds(self) -> tuple[FileKind, ...]:
        """The files that can be concepts of the method: their name and a pattern."""
        label, suffixes = _FILES[learns_from(self._form.config)]
        return ((label, " ".join(f"*{suffix}" for suffix in sorted(suffixes))),)

    def folder_of(self, index: int) -> Path:
        """Return the folder of a concept, or the one that contains its file."""
        folder = from_root(self.concepts[index].path)
        return folder if folder.is_dir() else folder.parent

    def index_with(self, image: Path | None) -> int | None:
        """Return the concept that contains an image, an enabled one first; for None, the first with images."""
        candidates = [
            (not concept.enabled, index)
            for index, concept in enumerate(self.concepts)
            if concept.has_images
            and concept.path.strip()
            and (image is None or image.is_relative_to(from_root(concept.path.strip())))
        ]
        return min(candidates)[1] if candidates else None

    def add_folders(self, paths: Iterable[Path]) -> None:
        """Add a concept for each folder and archive; another file stands for its folder.

        Its type is what the method learns from: pairs if a folder or a table has them, prompts if only files of prompts
        are added.
        """
        key, number = (self, "add"), len(self.concepts)
        self._pump.finish(key)  # what was added just before
        task = make_concepts(
            paths,
            made=lambda n, concept: self._list.make(number + n, concept),
            add=self._add,
            learns_from=learns_from(self._form.config),
        )
        self._pump.work_through(key, task)

    def clone(self, indices: Collection[int]) -> list[int]:
        """Clone concepts, with other augmentation seeds; return the clones."""
        return clone(self._form, indices)

    def toggle(self, indices: Sequence[int], *, to: bool | None = None) -> None:
        """Enable or disable concepts: the opposite of the first one's state by default."""
        if indices:
            is_on = not self.concepts[indices[0]].enabled if to is None else to
            items.change(self._form, PATH, indices, enabled=is_on)

    def toggle_visible(self, *, to: bool) -> None:
        """Enable or disable all concepts that the filter leaves."""
        self.toggle([card.index for card in self.visible], to=to)

    def remove(self, indices: Collection[int]) -> str:
        """Remove concepts; their files stay. Return what was removed."""
        names = [card.name for card in self.cards if card.index in indices]
        items.remove(self._form, PATH, indices)
        return names[0] if len(names) == 1 else count(len(names), "concept")

    def move(self, indices: Collection[int], before: int) -> list[int]:
        """Move concepts before another one; return their new indices."""
        return items.move_before(self._form, PATH, indices, before)

    def move_to_card(self, indices: Collection[int], before: int) -> list[int]:
        """Move concepts before a card, or behind the last one; return their new indices."""
        visible = self.visible
        end = visible[-1].index + 1 if visible else 0
        return self.move(indices, visible[before].index if before < len(visible) else end)

    def step(self, indices: Sequence[int], by: int) -> list[int]:
        """Move concepts one place forward or back; return their new indices."""
        before = max(0, indices[0] - 1) if by < 0 else min(len(self.concepts), indices[-1] + 2)
        return self.move(indices, before)

    def _add(self, concepts: Sequence[Concept]) -> None:
        """Add new concepts: many on the next turn of the pump, because making them took this one."""
        if len(concepts) > _MANY:
            self._pump.redraw_soon(object(), partial(self._append, concepts))
        else:
            self._append(concepts)

    def _append(self, concepts: Sequence[Concept]) -> None:
        self.added(items.add(self._form, PATH, concepts))

    def _refresh_soon(self) -> None:
        self._pump.redraw_soon(self, self.refresh, at_most_every_seconds=_REFRESH_SECONDS)


def make_concepts(
    paths: Iterable[Path],
    *,
    made: Callable[[int, Concept], object],
    add: Callable[[Sequence[Concept]], object],
    learns_from: LearnsFrom = "images",
) -> Iterator[None]:
    """Make a concept for each folder and archive, some per `next`, and add all with the last; another file stands for
    its folder. `made` is called with the number of each new concept. `learns_from` is the need of the method.
    """
    new: dict[Path, Concept] = {}
    paths = tuple(paths)
    # Captions that are dropped together with their images are not prompts.
    suffixes = {path.suffix.lower() for path in paths}
    are_prompts = learns_from == "prompts" and suffixes <= {*PROMPT_SUFFIXES}
    are_pairs = learns_from == "pairs" and suffixes <= PAIR_SUFFIXES
    for number, path in enumerate(paths, 1):
        # `Path.is_dir` takes five times as long.
        is_source = os.path.isdir(path) or path.suffix.lower() in ARCHIVE_SUFFIXES  # noqa: PTH112
        source = path if is_source or are_prompts or are_pairs else path.parent
        if source not in new:
            new[source] = concept = _concept_of(source, are_prompts=are_prompts, learns_from=learns_from)
            made(len(new) - 1, concept)
        if number % _AT_ONCE == 0:
            yield
    if new:
        add(tuple(new.values()))


def _concept_of(source: Path, *, are_prompts: bool, learns_from: LearnsFrom) -> Concept:
    path = as_config_path(source)
    if are_prompts:
        return Concept(path=path, kind="prompts")
    has_sides = all((source / side).is_dir() for side in (CHOSEN_FOLDER, REJECTED_FOLDER))
    if learns_from == "pairs" and (has_sides or source.suffix.lower() in PAIR_SUFFIXES):
        return Concept(path=path, kind="pairs")
    return Concept(path=path)


def clone(form: FormModel, indices: Collection[int]) -> list[int]:
    """Insert a copy after each concept, as one undo step; return the indexes of the copies.

    Each copy gets another augmentation seed, so that its augmentations differ from the original's.
    """
    result: list[Concept] = []
    copies: list[int] = []
    concepts = items.items_of(form, PATH)
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
    form.edit(PATH, tuple(result))
    return copies
