"""The captioners and the maskers: their records, and the lists of them.

Factories are named here and imported when they run.
"""

from __future__ import annotations

from collections.abc import Mapping

from modules.annotators.spec import ONNX, WEIGHTS, CaptionerSpec, MaskerSpec, ModelFiles


def _wd_tagger(name: str, label: str, text: str, repository: str, revision: str, size_bytes: int) -> CaptionerSpec:
    """Return the record of one of SmilingWolf's taggers with Danbooru's tags."""
    return CaptionerSpec(
        name,
        label,
        text,
        "modules.annotators.models.onnx_models:make_wd_tagger",
        ModelFiles(repository, ("model.onnx", "selected_tags.csv"), size_bytes, revision=revision),
        "Apache-2.0",
        frozenset({"threshold", "character_threshold", "exclude_tags", "keep_underscores"}),
        packages=(ONNX,),
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

# Florence-2 base (Xiao et al. 2023, "Florence-2"): from one sentence to a paragraph.
FLORENCE_2_BASE = CaptionerSpec(
    "florence_2_base",
    "Florence-2 base",
    "Sentences for any image, as short or as detailed as chosen.",
    "modules.annotators.models.transformers_models:make_florence",
    ModelFiles(
        "florence-community/Florence-2-base",
        ("config.json",),
        weights=("model.safetensors", "pytorch_model.bin"),
        revision="00921df66db728a9ceb750f5eca43e5c203a2051",
    ),
    "MIT",
    frozenset({"detail"}),
)

# Florence-2 large (Xiao et al. 2023, "Florence-2"): from one sentence to a paragraph.
FLORENCE_2_LARGE = CaptionerSpec(
    "florence_2_large",
    "Florence-2 large",
    "Sentences for any image, as short or as detailed as chosen. More accurate than the base model.",
    "modules.annotators.models.transformers_models:make_florence",
    ModelFiles(
        "florence-community/Florence-2-large",
        ("config.json",),
        weights=("model.safetensors", "pytorch_model.bin"),
        revision="4271c66b88cdbc05735372ec13b2360108de5317",
    ),
    "MIT",
    frozenset({"detail"}),
)

# BLIP base (Li et al. 2022, "BLIP"): one sentence.
BLIP_BASE = CaptionerSpec(
    "blip_base",
    "BLIP base",
    "A short sentence for photographs. Fast.",
    "modules.annotators.models.transformers_models:make_blip",
    ModelFiles(
        "Salesforce/blip-image-captioning-base",
        ("config.json",),
        990_000_000,
        weights=("model.safetensors", "pytorch_model.bin"),
        revision="82a37760796d32b1411fe092ab5d4e227313294b",
    ),
    "BSD-3-Clause",
    frozenset({"initial"}),
)

# BLIP large (Li et al. 2022, "BLIP"): one sentence.
BLIP_LARGE = CaptionerSpec(
    "blip_large",
    "BLIP large",
    "A short sentence for photographs.",
    "modules.annotators.models.transformers_models:make_blip",
    ModelFiles(
        "Salesforce/blip-image-captioning-large",
        ("config.json",),
        1_880_000_000,
        weights=("model.safetensors", "pytorch_model.bin"),
        revision="353689b859fcf0523410b1806dace5fb46ecdf41",
    ),
    "BSD-3-Clause",
    frozenset({"initial"}),
)

# U2-Net (rembg): the foreground of an image, as the program rembg finds it.
_U2NET_URL = "https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2net.onnx"

U2NET = MaskerSpec(
    "u2net",
    "U2-Net (rembg)",
    "The foreground: whatever stands out.",
    "modules.annotators.models.onnx_models:make_u2net",
    ModelFiles("", ("u2net.onnx",), 176_000_000, url=_U2NET_URL, md5="60024c5c889badc19c04ad937298a77b"),
    "Apache-2.0",
    frozenset({"threshold"}),
    packages=(ONNX,),
)

# U2-Net for people (rembg): the foreground of an image, as the program rembg finds it.
_U2NET_HUMAN_URL = "https://github.com/danielgatis/rembg/releases/download/v0.0.0/u2net_human_seg.onnx"

U2NET_HUMAN = MaskerSpec(
    "u2net_human",
    "U2-Net for people (rembg)",
    "The people in an image.",
    "modules.annotators.models.onnx_models:make_u2net",
    ModelFiles(
        "", ("u2net_human_seg.onnx",), 176_000_000, url=_U2NET_HUMAN_URL, md5="c09ddc2e0104f800e3e1bb4652583d1f"
    ),
    "Apache-2.0",
    frozenset({"threshold"}),
    packages=(ONNX,),
)

# IS-Net (rembg): the foreground of an image, as the program rembg finds it.
_ISNET_URL = "https://github.com/danielgatis/rembg/releases/download/v0.0.0/isnet-general-use.onnx"

ISNET = MaskerSpec(
    "isnet",
    "IS-Net (rembg)",
    "The foreground, with finer edges than U2-Net; slower.",
    "modules.annotators.models.onnx_models:make_isnet",
    ModelFiles("", ("isnet-general-use.onnx",), 179_000_000, url=_ISNET_URL, md5="fc16ebd8b0c10d971d3513d564d01e29"),
    "Apache-2.0",
    frozenset({"threshold"}),
    packages=(ONNX,),
)

# CLIPSeg (Lüddecke and Ecker 2022): the part of an image that a text describes.
CLIPSEG = MaskerSpec(
    "clipseg",
    "CLIPSeg",
    "What a text describes, such as a face, or a red car. Several texts, separated by commas, are masked together.",
    "modules.annotators.models.transformers_models:make_clipseg",
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

# Colour: all pixels except those of one colour, such as a plain background. Needs no model.
COLOUR = MaskerSpec(
    "colour",
    "Colour",
    "Everything except one colour, such as a plain background. Needs no model.",
    "modules.annotators.models.colour_masker:make_colour",
    None,
    "",
    frozenset({"colour", "tolerance"}),
)


CAPTIONERS: Mapping[str, CaptionerSpec] = {
    spec.name: spec
    for spec in (
        WD_SWINV2_V3,
        WD_VIT_V3,
        WD_EVA02_LARGE_V3,
        WD_VIT_V2,
        FLORENCE_2_BASE,
        FLORENCE_2_LARGE,
        BLIP_BASE,
        BLIP_LARGE,
    )
}

MASKERS: Mapping[str, MaskerSpec] = {spec.name: spec for spec in (U2NET, U2NET_HUMAN, ISNET, CLIPSEG, COLOUR)}
