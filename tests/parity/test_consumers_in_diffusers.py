"""The table of programs against diffusers itself: how many layers of each kind of adapter file it loads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from diffusers.utils import logging as diffusers_logging
from peft.tuners.lora import LoraLayer
from transformers.utils import logging as transformers_logging

from tests.builders import lora_keys as by
from tests.builders.lora_keys import Keys
from tests.unit.test_consumers import ROWS, loads

MORE: dict[str, tuple[str, Any]] = {
    "both namings": (
        "sdxl",
        lambda: (
            by.kohya("sdxl") | by.kohya("sdxl", lambda part, path: path == "mid_block.resnets.0.conv1", is_sgm=False)
        ),
    ),
    "text without text_model": ("sd1", lambda: by.renamed(by.kohya("sd1"), "text_model_", "")),
    "text without text_model, SGM": ("sdxl", lambda: by.renamed(by.kohya("sdxl"), "text_model_", "")),
    "SGM names, SD 1.5": ("sd1", lambda: by.kohya("sd1", is_sgm=True)),
    "lora_te_, SDXL": ("sdxl", lambda: by.kohya("sdxl", text="lora_te")),
    "a layer of another model": (
        "sd1",
        lambda: (
            by.kohya("sd1") | {"lora_unet_strange.lora_down.weight": (4, 4), "lora_unet_strange.lora_up.weight": (4, 4)}
        ),
    ),
    "text projection, PEFT": ("sdxl", lambda: by.peft("sdxl", by.everything)),
    "UNet without unet.": ("sd1", lambda: by.renamed(by.peft("sd1", by.unet), r"^unet\.", "")),
    "PEFT, lora_down": (
        "sd1",
        lambda: by.renamed(by.renamed(by.peft("sd1", by.unet), "lora_A", "lora_down"), "lora_B", "lora_up"),
    ),
    "ComfyUI, UNet": ("sd1", lambda: {n: s for n, s in by.comfy("sd1", by.unet).items() if not n.endswith(".alpha")}),
}
LIKE_OTHERS = ("kohya, SDXL, transformers", "PEFT, SDXL", "diffusers, SDXL")
FILES = {name: (row[0], row[1]) for name, row in ROWS.items() if name not in LIKE_OTHERS} | MORE


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Loading on the meta device makes transformers report every weight as missing."""
    libraries = transformers_logging, diffusers_logging
    levels = [library.get_verbosity() for library in libraries]
    for library in libraries:
        library.set_verbosity(logging.CRITICAL)
    yield
    for library, level in zip(libraries, levels, strict=True):
        library.set_verbosity(level)


def loaded_by_diffusers(model: str, keys: Keys) -> int:
    """Return how many layers diffusers loads into a pipeline of full size on the meta device; 0 where it raises."""
    parts = by.meta_parts(model)
    kind = StableDiffusionXLPipeline if model == "sdxl" else StableDiffusionPipeline
    pipe: Any = object.__new__(type("OnlyParts", (kind,), {"components": parts}))
    for name, part in parts.items():
        object.__setattr__(pipe, name, part)
    state = {n: torch.empty(shape, device="meta") if shape else torch.tensor(4.0) for n, shape in keys.items()}
    try:
        pipe.load_lora_weights(state, adapter_name="one", low_cpu_mem_usage=True)
    except (ValueError, IndexError):
        return 0
    return sum(isinstance(m, LoraLayer) for part in parts.values() for m in part.modules())


@pytest.mark.parametrize("name", [name for name in FILES if name != "DoRA"])
def test_the_table_counts_as_diffusers_does(name: str) -> None:
    model, keys = FILES[name]
    found = loads(model, keys(), programs=("diffusers",))["diffusers"]
    assert not found.unknown
    assert found.loaded == loaded_by_diffusers(model, keys())


def test_dora_scales_are_dropped() -> None:
    """The layers load as plain LoRA, so none of them is complete."""
    model, keys = FILES["DoRA"]
    assert loaded_by_diffusers(model, keys()) == 354
    found = loads(model, keys(), programs=("diffusers",))["diffusers"]
    assert (found.loaded, found.note) == (0, "loads them without the DoRA scales")
