"""How programs answer to the names of layers in LoRA files of SD 1.x, 2.x and SDXL (`PublishedModel.naming_rows`)."""

from __future__ import annotations

from collections.abc import Mapping

from modules.formats.program_table import ALL, DIFFUSERS_NAMES, SGM_NAMES, UNKNOWN, UNMEASURED, Row, none, refuses

_SKIPS_INPUT = none("skips conv_in of inpainting models")
_NOT_OUTSIDE = none("does not map layers outside the blocks")
_ONLY_BLOCKS = none("has no LoRA on layers outside the blocks")
_NO_ATTENTION = "the attention of this form"
_DROPS_SGM = none("drops SGM names where the file has diffusers names, too")
_PEFT: Row = {
    "ComfyUI": {"": ALL, "attention": none(f"does not map {_NO_ATTENTION}")},
    "Forge": {"": ALL, "attention": refuses(f"refuses the file, because it cannot place {_NO_ATTENTION}")},
    "diffusers": ALL,
    "diffusers 0.31": ALL,
}
_SGM_IN_SDXL: Row = {
    "ComfyUI": ALL,
    "A1111": {"": ALL, "norm": UNKNOWN, "inpainting input": _SKIPS_INPUT},
    "Forge": ALL,
    "diffusers": ALL,
    "diffusers 0.31": {"": ALL, "outside": refuses("raises an error: layers outside the blocks are not supported")},
    "sd-scripts": {"": ALL, "norm": UNKNOWN, "outside": _ONLY_BLOCKS},
    "LyCORIS": ALL,
}
SD_ROWS: Mapping[str, Row] = {
    DIFFUSERS_NAMES: {
        "ComfyUI": ALL,
        "A1111": {"": ALL, "inpainting input": _SKIPS_INPUT},
        "Forge": ALL,
        "diffusers": ALL,
        "diffusers 0.31": {"": ALL, "outside": _NOT_OUTSIDE},
        "sd-scripts": {"": ALL, "norm": UNKNOWN, "outside": _ONLY_BLOCKS},
        "LyCORIS": ALL,
    },
    SGM_NAMES: {
        **UNMEASURED,
        "ComfyUI": ALL,
        "A1111": {"": UNKNOWN, "inpainting input": _SKIPS_INPUT},
        "Forge": ALL,
        "diffusers": {"": none("does not map SGM names for this model"), "outside": ALL},
        "sd-scripts": {"": UNKNOWN, "outside": _ONLY_BLOCKS},
    },
    "PEFT, denoiser": _PEFT,
}
SDXL_ROWS: Mapping[str, Row] = {
    DIFFUSERS_NAMES: {
        "ComfyUI": ALL,
        "A1111": {
            "": ALL,
            "norm": UNKNOWN,
            "added embedding": none("does not map add_embedding"),
            "inpainting input": _SKIPS_INPUT,
        },
        "Forge": ALL,
        "diffusers": {"": ALL, "added embedding": none("gives the two layers of add_embedding the same name")},
        "diffusers 0.31": {"": ALL, "outside": _NOT_OUTSIDE},
        "sd-scripts": {"": UNKNOWN, "outside": _ONLY_BLOCKS},
        "LyCORIS": UNKNOWN,
    },
    SGM_NAMES: _SGM_IN_SDXL,
    "kohya, SGM and diffusers names": {
        **_SGM_IN_SDXL,
        "diffusers": {"": _DROPS_SGM, "added embedding": ALL},
        "diffusers 0.31": refuses("raises an error: files with both namings are not supported"),
    },
    "kohya, text without text_model": {
        "diffusers": refuses("raises an error: the names of the text layers lack text_model")
    },
    "OFT of sd-scripts": {"A1111": ALL, "sd-scripts": UNKNOWN, "LyCORIS": UNKNOWN},
    "PEFT, denoiser": _PEFT,
}
