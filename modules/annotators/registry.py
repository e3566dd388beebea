"""The captioners and maskers, a record each, and the places of their files on this computer.

Factories are named here and imported when they run; nothing is downloaded here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modules.formats.published_files import find_cached_file
from modules.system.factories import Package
from modules.system.paths import models_dir
from modules.system.problem import format_size

CaptionSetting = Literal["threshold", "character_threshold", "exclude_tags", "keep_underscores", "initial", "detail"]
MaskSetting = Literal["prompts", "colour", "tolerance", "threshold"]

ONNX = Package("onnxruntime")
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # of a transformers model; the first one that a repository has


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The published files of a model: a repository at Hugging Face with some files, or one file at an address.

    `names` are required. For a transformers model, whose weights are in one of `weights`, the other text files are
    downloaded as well. `size_bytes` is approximate, 0 if it is not known. `md5` is the sum of the file at `url`.
    `revision` is the commit of the repository that is downloaded: a repository can change later.
    """

    repo: str
    names: tuple[str, ...]
    size_bytes: int = 0
    weights: tuple[str, ...] = ()
    url: str = ""
    md5: str = ""
    revision: str = ""

    @property
    def description(self) -> str:
        """The place, the files and the size, in full."""
        names = ", ".join((*self.names, *self.weights[:1]))
        place = self.url or f"{self.repo} at Hugging Face"
        return f"{place} ({names}, {self.size_text})"

    @property
    def size_text(self) -> str:
        """The size of the download as text."""
        return format_size(self.size_bytes) if self.size_bytes else "size not known"


@dataclass(frozen=True, slots=True)
class CaptionerSpec:
    """The facts about a captioner that are known before anything is loaded.

    `factory` names the function that builds it, as "module:function", called with the folder of its files (or its only
    file, of a model at an address), the `CaptionSettings` and the name of a device; it returns a `Captioner`.
    `settings` are the settings that it uses. `is_for_drawings`: it was trained on drawings, and describes things in
    photographs that are not there.
    """

    name: str
    label: str
    help: str
    factory: str
    files: ModelFiles
    licence: str
    settings: frozenset[CaptionSetting]
    packages: tuple[Package, ...] = ()
    is_for_drawings: bool = False


@dataclass(frozen=True, slots=True)
class MaskerSpec:
    """The facts about a masker that are known before anything is loaded.

    `factory` is called with the folder of its files (or its only file, or None without any), the `MaskSettings` and the
    name of a device; it returns a `Masker`.
    """

    name: str
    label: str
    help: str
    factory: str
    files: ModelFiles | None
    licence: str
    settings: frozenset[MaskSetting]
    packages: tuple[Package, ...] = ()


def find_place(files: ModelFiles, *, hub_cache_dir: str = "") -> Path | None:
    """Return the folder with the files of a model, or its only file, if all are on this computer.

    Only names are checked.
    """
    if files.url:
        file = models_dir() / files.names[0]
        return file if file.is_file() else None
    for revision in dict.fromkeys((files.revision, "")):  # also what was downloaded before
        places = [find_cached_file(files.repo, name, revision, hub_cache_dir=hub_cache_dir) for name in files.names]
        weights = [find_cached_file(files.repo, name, revision, hub_cache_dir=hub_cache_dir) for name in files.weights]
        if places and places[0] is not None and None not in places and (not weights or any(weights)):
            return places[0].parent
    return None


# The captioners and maskers.


def _wd_tagger(name: str, label: str, text: str, repository: str, revision: str, size_bytes: int) -> CaptionerSpec:
    """Return the record of one of SmilingWolf's taggers with Danbooru's tags."""
    return CaptionerSpec(
        name,
        label,
        text,
        "modules.annotators.onnx_models:make_wd_tagger",
        ModelFiles(repository, ("model.onnx", "selected_tags.csv"), size_bytes, revision=revision),
        "Apache-2.0",
        frozenset({"threshold", "character_threshold", "exclude_tags", "keep_underscores"}),
        packages=(ONNX,),
        is_for_drawings=True,
    )


WD_SWINV2_V3 = _wd_tagger(
    "wd_swinv2_v3",
    "WD SwinV2 tagger v3",
    "Tags for drawings and anime, separated by commas.",
    "SmilingWolf/wd-swinv2-tagger-v3",
    "627aef95638667ddcaa3ac8ae625e88ea5b02f51",
    467_000_000,
)

WD_VIT_V3 = _wd_tagger(
    "wd_vit_v3",
    "WD ViT tagger v3",
    "Tags for drawings and anime, separated by commas. Fast.",
    "SmilingWolf/wd-vit-tagger-v3",
    "7f6b584d0bd3f55c4531f14ba3d4761b2bccdc0f",
    379_000_000,
)

WD_EVA02_LARGE_V3 = _wd_tagger(
    "wd_eva02_large_v3",
    "WD EVA02-Large tagger v3",
    "Tags for drawings and anime, separated by commas. The most accurate of them, and the slowest.",
    "SmilingWolf/wd-eva02-large-tagger-v3",
    "b25b82a03f7282e41aa2f257a52c7583b710bd1c",
    1_260_000_000,
)

WD_VIT_V2 = _wd_tagger(
    "wd_vit_v2",
    "WD14 ViT tagger v2",
    "Tags for drawings and anime, separated by commas. The tagger of OneTrainer.",
    "SmilingWolf/wd-v1-4-vit-tagger-v2",
    "1f3f3e8ae769634e31e1ef696df11ec37493e4f2",
    373_000_000,
)


def _sentences(
    name: str, label: str, text: str, model: str, files: ModelFiles, licence: str, setting: CaptionSetting
) -> CaptionerSpec:
    factory = f"modules.annotators.transformers_models:make_{model}"
    return CaptionerSpec(name, label, text, factory, files, licence, frozenset({setting}))


def _weights_of(repository: str, revision: str, size_bytes: int = 0) -> ModelFiles:
    return ModelFiles(repository, ("config.json",), size_bytes, weights=WEIGHTS, revision=revision)


# Florence-2 (Xiao et al. 2023, "Florence-2"): from one sentence to a paragraph.
FLORENCE_2_BASE = _sentences(
    "florence_2_base",
    "Florence-2 base",
    "Sentences for any image, as short or as detailed as chosen.",
    "florence",
    _weights_of("florence-community/Florence-2-base", "00921df66db728a9ceb750f5eca43e5c203a2051"),
    "MIT",
    "detail",
)

FLORENCE_2_LARGE = _sentences(
    "florence_2_large",
    "Florence-2 large",
    "Sentences for any image, as short or as detailed as chosen. More accurate than the base model.",
    "florence",
    _weights_of("florence-community/Florence-2-large", "4271c66b88cdbc05735372ec13b2360108de5317"),
    "MIT",
    "detail",
)

# BLIP (Li et al. 2022, "BLIP"): one sentence.
BLIP_BASE = _sentences(
    "blip_base",
    "BLIP base",
    "A short sentence for photographs. Fast.",
    "blip",
    _weights_of("Salesforce/blip-image-captioning-base", "82a37760796d32b1411fe092ab5d4e227313294b", 990_000_000),
    "BSD-3-Clause",
    "initial",
)

BLIP_LARGE = _sentences(
    "blip_large",
    "BLIP large",
    "A short sentence for photographs.",
    "blip",
    _weights_of("Salesforce/blip-image-captioning-large", "353689b859fcf0523410b1806dace5fb46ecdf41", 1_880_000_000),
    "BSD-3-Clause",
    "initial",
)


def _rembg(name: str, label: str, text: str, model: str, file: str, size_bytes: int, md5: str) -> MaskerSpec:
    """Return the record of a model that finds the foreground of an image, as the program rembg does."""
    url = f"https://github.com/danielgatis/rembg/releases/download/v0.0.0/{file}"
    files = ModelFiles("", (file,), size_bytes, url=url, md5=md5)
    factory = f"modules.annotators.onnx_models:make_{model}"
    return MaskerSpec(name, label, text, factory, files, "Apache-2.0", frozenset({"threshold"}), packages=(ONNX,))


U2NET = _rembg(
    "u2net",
    "U2-Net (rembg)",
    "The foreground: whatever stands out.",
    "u2net",
    "u2net.onnx",
    176_000_000,
    "60024c5c889badc19c04ad937298a77b",
)

U2NET_HUMAN = _rembg(
    "u2net_human",
    "U2-Net for people (rembg)",
    "The people in an image.",
    "u2net",
    "u2net_human_seg.onnx",
    176_000_000,
    "c09ddc2e0104f800e3e1bb4652583d1f",
)

ISNET = _rembg(
    "isnet",
    "IS-Net (rembg)",
    "The foreground, with finer edges than U2-Net; slower.",
    "isnet",
    "isnet-general-use.onnx",
    179_000_000,
    "fc16ebd8b0c10d971d3513d564d01e29",
)

# CLIPSeg (Lüddecke and Ecker 2022): the part of an image that a text describes.
CLIPSEG = MaskerSpec(
    "clipseg",
    "CLIPSeg",
    "What a text describes, such as a face, or a red car. Several texts, separated by commas, are masked together.",
    "modules.annotators.transformers_models:make_clipseg",
    ModelFiles(
        "CIDAS/clipseg-rd64-refined",
        ("config.json",),
        603_000_000,
        weights=WEIGHTS,
        revision="999e0328d9e10b484360c477313983f9afdd7050",
    ),
    "Apache-2.0",
    frozenset({"prompts", "threshold"}),
)

# Colour: all pixels except one colour, such as a plain background. Needs no model.
COLOUR = MaskerSpec(
    "colour",
    "Colour",
    "Everything except one colour, such as a plain background. Needs no model.",
    "modules.annotators.colour_masker:make_colour",
    None,
    "",
    frozenset({"colour", "tolerance"}),
)


CAPTIONERS: Mapping[str, CaptionerSpec] = {
    spec.name: spec
    for spec in (
        FLORENCE_2_BASE,  # the first one is the default: it describes photographs, and needs no other package
        FLORENCE_2_LARGE,
        BLIP_BASE,
        BLIP_LARGE,
        WD_SWINV2_V3,
        WD_VIT_V3,
        WD_EVA02_LARGE_V3,
        WD_VIT_V2,
    )
}


def captioner_for(*, are_drawn: bool) -> CaptionerSpec:
    """Return the first captioner for drawings, or for photographs; one whose packages are installed if there is one."""
    fitting = [spec for spec in CAPTIONERS.values() if spec.is_for_drawings == are_drawn]
    return next((s for s in fitting if all(p.is_installed for p in s.packages)), fitting[0])


MASKERS: Mapping[str, MaskerSpec] = {spec.name: spec for spec in (U2NET, U2NET_HUMAN, ISNET, CLIPSEG, COLOUR)}
