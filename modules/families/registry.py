"""The model families, one line each: the factories are named, and imported when a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modules.families.spec import FamilySpec, Role
from modules.settings.lazy_variants import LazyRecords
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory

if TYPE_CHECKING:  # the window needs neither until it inspects a file
    from modules.families.published import FamilyFiles, PublishedModel

_FAMILIES: LazyRecords[FamilySpec] = LazyRecords(
    "modules.families",
    {
        "sd": "sd.spec",
        "sdxl": "sdxl.spec",
        "z_image": "z_image.spec",
        "flux": "flux.spec",
        "chroma": "chroma.spec",
        "sd3": "sd3.spec",
        "hidream": "hidream.spec",
        "hunyuan_video": "hunyuan_video.spec",
        "hunyuan_image": "hunyuan_image.spec",
        "flux2_klein": "flux2_klein.spec",
        "krea2": "krea2.spec",
        "flux2": "flux2.spec",
        "qwen_image": "qwen_image.spec",
        "qwen_image21": "qwen_image21.spec",
        "flux3": "flux3.spec",
        "anima": "anima.spec",
        "pixart": "pixart.spec",
        "sana": "sana.spec",
        "lumina2": "lumina2.spec",
        "ernie_image": "ernie_image.spec",
        "ideogram4": "ideogram4.spec",
        "stable_cascade": "stable_cascade.spec",
        "wuerstchen": "wuerstchen.spec",
    },
)

FAMILIES: Mapping[str, FamilySpec] = _FAMILIES


@contextmanager
def registered(spec: FamilySpec) -> Iterator[FamilySpec]:
    """Register one more family while entered, for tests and experiments.

    All code looks families up here at the time of use, so no other registration is needed. Raises ValueError if the
    name is taken.
    """
    if spec.name in _FAMILIES:
        raise ValueError(f"The family {spec.name!r} is already registered.")
    _FAMILIES[spec.name] = spec
    try:
        yield spec
    finally:
        del _FAMILIES[spec.name]


def family_labels() -> Mapping[str, str]:
    """Return the families' labels by name."""
    return {name: spec.label for name, spec in FAMILIES.items()}


def newest_families() -> tuple[str, ...]:
    """Return the names of the families, the newest first and those for research alone last.

    The window offers them in this order to a user who has not chosen one.
    """
    newest = sorted(FAMILIES.values(), key=lambda spec: spec.released, reverse=True)
    return tuple(spec.name for spec in sorted(newest, key=lambda spec: spec.is_for_research))


def families_with(role: Role, *, at_least: int = 1) -> tuple[str, ...]:
    """Return the names of the families with at least this many parts of a role, for fields about these parts.

    A text encoder that only reads the states of another one does not count.
    """
    counts = {n: sum(p.role == role and not p.reads for p in spec.parts) for n, spec in FAMILIES.items()}
    return tuple(name for name, count in counts.items() if count >= at_least)


def files_of(family: str) -> FamilyFiles:
    """Return the record of a family's files."""
    files: FamilyFiles = load_factory(FAMILIES[family].files)
    return files


def all_files() -> Iterator[FamilyFiles]:
    """Yield the record of each family's files, in the order of the registry."""
    yield from (files_of(name) for name in tuple(FAMILIES))


def published_models() -> Iterator[PublishedModel]:
    """Yield the published models of all families."""
    for files in all_files():
        yield from files.models


def published_model(model: str) -> PublishedModel:
    """Return a published model by name. Raises DarkroomError for an unknown one."""
    match = next((m for m in published_models() if m.name == model), None)
    if match is None:
        names = ", ".join(sorted(m.name for m in published_models()))
        raise DarkroomError(f"Unknown model {model!r}.", advice=f"Choose one of {names}.")
    return match


def label_of(model: str) -> str:
    """Return the label of a published model; empty for an unknown one."""
    return next((m.label for m in published_models() if m.name == model), "")


def family_of(model: str) -> str:
    """Return the family of a published model; empty for an unknown one."""
    return next((m.family for m in published_models() if m.name == model), "")


def model_of_text_width(width: int) -> str:
    """Return the published model whose cross-attention reads text states of a width; empty for an unknown width."""
    return next((m.name for m in published_models() if m.text_width and m.text_width == width), "")
