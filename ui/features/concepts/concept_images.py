"""The images of a concept as its grid shows them: in the order of their losses, and which are excluded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from modules.data.concept import Concept, Kind
from modules.data.scan import name_within
from modules.data.source_image import SourceImage
from modules.system.paths import from_root
from modules.system.problem import agree, count
from trainer.run_folder.image_report import FOLDER, ImageLoss, describe_hardest, newest_report
from trainer.run_folder.records import run_dirs
from ui.forms.context import Context
from ui.forms.model import FormModel

ORDERS: Mapping[str, str] = {"name": "By name", "loss": "By loss"}
VIEW = "concept_images"  # the name of the view's state, with the order
_MAX_REPORTS = 50  # that are read


def sort_by_loss(context: Context) -> None:
    """Let the grids that are opened from now on show the highest losses first, where there are some."""
    context.view_state.of(VIEW, dict[str, str])["order"] = "loss"


@dataclass(frozen=True, slots=True)
class ConceptLosses:
    """The losses of a concept's images in a report: `images` are all images, those with the highest losses first."""

    step: int
    run: str
    images: tuple[SourceImage, ...]
    by_path: Mapping[str, ImageLoss]

    def of(self, image: SourceImage) -> ImageLoss | None:
        """Return the loss of an image; None if it was not measured."""
        return self.by_path.get(image.path_text)

    @property
    def summary(self) -> str:
        """The step and run of the measurement, and which images stand out or, if none does, are the hardest."""
        number = sum(bool(loss.verdict) for loss in self.by_path.values())
        if missing := len(self.images) - len(self.by_path):
            rest = f"; {count(missing, 'image')} {agree(missing, 'was')} not measured"
        else:
            rest = ""
        stand_out = f"{number:,} {agree(number, 'stands')} out" if number else "none stands out"
        hardest = "" if number else describe_hardest(self.by_path.values())
        return f"Losses after step {self.step:,} of {self.run}: {stand_out}{rest}. {hardest}".strip()


def find_losses(workspace: Path, kind: Kind, images: Sequence[SourceImage]) -> ConceptLosses | None:
    """Return the losses of images in the newest report of a workspace that has some of them. For a background thread.

    Damaged reports and reports of other images are skipped. An image that several concepts have may have been
    measured as several kinds: then its loss as `kind` counts.
    """
    reported = (run_dir for run_dir in run_dirs(workspace) if (run_dir / FOLDER).is_dir())
    known: dict[str, SourceImage] = {}
    for run_dir in islice(reported, _MAX_REPORTS):
        report = newest_report(run_dir)
        if report is None:
            continue
        known = known or {image.path_text: image for image in images}
        of_any = [loss for loss in report.images if loss.path in known and math.isfinite(loss.times)]
        losses = {loss.path: loss for loss in sorted(of_any, key=lambda loss: loss.kind == kind)}
        if losses:
            highest = sorted(losses, key=lambda path: -losses[path].times)
            others = (image for path, image in known.items() if path not in losses)
            return ConceptLosses(report.step, run_dir.name, (*(known[path] for path in highest), *others), losses)
    return None


def describe_loss(loss: ImageLoss) -> str:
    """Return the loss of an image compared to the losses of the others, and which one looks the same, if one does."""
    same = f", near duplicate of {Path(loss.same_as).name}" if loss.same_as else ""
    if round(loss.times, 1) == 1:
        return f"the usual loss{same}"
    times = f"{loss.times:.2g}" if loss.times < 100 else f"{loss.times:,.0f}"
    return f"{times} times the usual loss{same}"


def is_excluded(concept: Concept, image: SourceImage) -> bool:
    """Return whether a concept leaves an image out."""
    names = concept.excluded_names
    return bool(names) and name_within(from_root(concept.path.strip()), image.path) in names


def set_excluded(form: FormModel, path: str, image: SourceImage, *, to: bool) -> None:
    """Exclude an image from the concept at a path of the config, or use it again. Its file stays."""
    concept: Concept = form.value(path)
    name = name_within(from_root(concept.path.strip()), image.path)
    others = [line for line in concept.excluded.splitlines() if line.strip() and line.strip() != name]
    form.edit(f"{path}.excluded", "\n".join([*others, name] if to else others))
