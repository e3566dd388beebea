"""The files of Anima: folders, the names of layers in LoRA files, and files of the transformer with the conditioner.

kohya's trainers and ComfyUI name the layers as the published checkpoint does, the conditioner's as `llm_adapter`;
diffusers' names have the prefixes `transformer.` and `text_conditioner.`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from modules.families.anima.settings import CONDITIONER
from modules.families.anima.transformer_file import (
    ADAPTER,
    SINGLE_FILE,
    TRANSFORMER_FILE,
    conditioner_layers,
    transformer_layers,
)
from modules.families.parts.single_file.slots import limited
from modules.families.parts.single_file.transformer_file import files_of_one_model
from modules.families.published import Configs, PublishedModel
from modules.formats.adapter_forms import Layout
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from modules.formats.program_table import ALL, COMFY_OF_FLOW, SGM_NAMES, UNMEASURED, Row, none, refuses

# diffusers was measured at toy size (2026-11-28); ComfyUI's are the names in its maps.
_ANSWERS: Row = {
    **UNMEASURED,
    "ComfyUI": ALL,
    "diffusers": ALL,
    "diffusers 0.31": none("does not have this model"),
}
_NAMING_ROWS: Mapping[str, Row] = {
    SGM_NAMES: {**_ANSWERS, "diffusers": none("does not map kohya's names of this model"), "sd-scripts": ALL},
    "ComfyUI, original names": _ANSWERS,
    "PEFT, denoiser": {**_ANSWERS, "ComfyUI": none("does not map diffusers' names of this model")},
    "PEFT, denoiser without its prefix": {**UNMEASURED, "diffusers": none("needs the prefix transformer.")},
    "other factors in PEFT names": {**UNMEASURED, "diffusers": refuses("raises an error for the factors' names")},
}


def _layers(configs: Configs) -> Iterator[AdapterTarget]:
    """Yield the linear layers of the transformer and of the conditioner."""
    for path, original, shape in transformer_layers(configs["transformer"]):
        if len(shape) == 2:
            paths: dict[Layout, str] = {"diffusers": path, "original": original}
            yield AdapterTarget("transformer", path, shape, paths, "lora_unet_", "original")
    for path, shape, _ in conditioner_layers(configs[CONDITIONER]):
        if len(shape) == 2 and path != "embed":
            named: dict[Layout, str] = {"with part": f"{CONDITIONER}.{path}", "original": f"{ADAPTER}{path}"}
            yield AdapterTarget(CONDITIONER, path, shape, named, "lora_unet_", "original")


MODEL = PublishedModel(
    name="anima",
    label="Anima",
    family="anima",
    architecture="anima",
    kohya_version="anima",
    implementation="https://huggingface.co/circlestone-labs/Anima",
    adapter_targets=lambda configs: AdapterTargets.of(limited(_layers(configs))),
    configs=Path(__file__).parent / "configs" / "anima",
    repository="circlestone-labs/Anima-Base-v1.0-Diffusers",
    pipelines={"": "AnimaModularPipeline"},
    blocks="AnimaAutoBlocks",
    single_file=SINGLE_FILE,
    programs=("ComfyUI", "diffusers"),
    naming_rows=_NAMING_ROWS,
    extra_rows={"alpha in ComfyUI's names": {"diffusers": refuses("raises an error for alphas in this form")}},
    versions={"ComfyUI": COMFY_OF_FLOW},
)
FILES = files_of_one_model(MODEL, TRANSFORMER_FILE, "anima")
