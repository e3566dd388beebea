"""The model families, one line each: the factories are named, and imported when a run begins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from modules.families.anima.spec import ANIMA
from modules.families.chroma.spec import CHROMA
from modules.families.ernie_image.spec import ERNIE_IMAGE
from modules.families.flux.spec import FLUX
from modules.families.flux2.spec import FLUX2
from modules.families.flux2_klein.spec import FLUX2_KLEIN
from modules.families.flux3.spec import FLUX3
from modules.families.hidream.spec import HIDREAM
from modules.families.hunyuan_image.spec import HUNYUAN_IMAGE
from modules.families.hunyuan_video.spec import HUNYUAN_VIDEO
from modules.families.ideogram4.spec import IDEOGRAM4
from modules.families.krea2.spec import KREA2
from modules.families.lumina2.spec import LUMINA2
from modules.families.pixart.spec import PIXART
from modules.families.qwen_image.spec import QWEN_IMAGE
from modules.families.qwen_image21.spec import QWEN_IMAGE21
from modules.families.sana.spec import SANA
from modules.families.sd.spec import SD
from modules.families.sd3.spec import SD3
from modules.families.sdxl.spec import SDXL
from modules.families.spec import FamilySpec, Role
from modules.families.stable_cascade.spec import STABLE_CASCADE
from modules.families.wuerstchen.spec import WUERSTCHEN
from modules.families.z_image.spec import Z_IMAGE
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory

if TYPE_CHECKING:  # the window needs neither until it inspects a file
    from modules.families.published import FamilyFiles, PublishedModel

_FAMILIES: dict[str, FamilySpec] = {
    SD.name: SD,
    SDXL.name: SDXL,
    Z_IMAGE.name: Z_IMAGE,
    FLUX.name: FLUX,
    CHROMA.name: CHROMA,
    SD3.name: SD3,
    HIDREAM.name: HIDREAM,
    HUNYUAN_VIDEO.name: HUNYUAN_VIDEO,
    HUNYUAN_IMAGE.name: HUNYUAN_IMAGE,
    FLUX2_KLEIN.name: FLUX2_KLEIN,
    KREA2.name: KREA2,
    FLUX2.name: FLUX2,
    QWEN_IMAGE.name: QWEN_IMAGE,
    QWEN_IMAGE21.name: QWEN_IMAGE21,
    FLUX3.name: FLUX3,
    ANIMA.name: ANIMA,
    PIXART.name: PIXART,
    SANA.name: SANA,
    LUMINA2.name: LUMINA2,
    ERNIE_IMAGE.name: ERNIE_IMAGE,
    IDEOGRAM4.name: IDEOGRAM4,
    STABLE_CASCADE.name: STABLE_CASCADE,
    WUERSTCHEN.name: WUERSTCHEN,
}

FAMILIES: Mapping[str, FamilySpec] = _FAMILIES


@contextmanager
def registered(spec: FamilySpec) -> Iterator[FamilySpec]:
    """Register one more family while entered, for tests and experiments.

    All code looks families up here at the time of use, so no other registration is needed. Raises ValueError where the
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
    """Return the names of the families, the newest first and those for research alone last: the order in which they are
    offered to a user without one.
    """
    newest = sorted(FAMILIES.values(), key=lambda spec: spec.released, reverse=True)
    return tuple(spec.name for spec in sorted(newest, key=lambda spec: spec.is_for_research))


def families_with(role: Role, *, at_least: int = 1) -> tuple[str, ...]:
    """Return the names of the families with at least this many parts of a role, for fields about these parts.

    A text encoder that only reads the states of another one does not count.
    """
    counts = {n: sum(p.role == role and not p.reads for p in spec.parts) for n, spec in FAMILIES.items()}
    return tuple(name for name, count in counts.items() if count >= at_least)


def predictions_in_use() -> frozenset[str]:
    """Return the prediction types of the models of all families: a choice for none of them is not offered."""
    return frozenset(prediction for spec in FAMILIES.values() for prediction in spec.process.predictions)


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


def published(model: str) -> PublishedModel:
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
