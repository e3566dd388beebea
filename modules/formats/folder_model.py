"""A model in diffusers' folder layout as tensors to be, and writing one: streamed, whole, loadable by stock diffusers.

Beside the weights of each part stand its config, the scheduler's, the tokenizers (CLIP's own where the model brings
none) and the index that names the classes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from modules.formats.diffusers_folder import read_json
from modules.formats.file_kind import FAMILY_OF, FileKind
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.safetensors_io import OnWritten, write_safetensors
from modules.formats.single_file.models import Configs, layouts
from modules.formats.single_file.write import CheckpointTraits, States, file_state, require_keys
from modules.formats.stored_tensors import stored_tensors
from modules.system.atomic import atomic_folder
from modules.system.errors import DarkroomError

_WEIGHTS = {"unet": "diffusion_pytorch_model", "vae": "diffusion_pytorch_model"}  # others: "model"
_CLASSES = {
    "unet": ("diffusers", "UNet2DConditionModel"),
    "vae": ("diffusers", "AutoencoderKL"),
    "text_encoder": ("transformers", "CLIPTextModel"),
    "text_encoder_2": ("transformers", "CLIPTextModelWithProjection"),
}
_PIPELINES = {
    ("sd", ""): "StableDiffusionPipeline",
    ("sd", "inpainting"): "StableDiffusionInpaintPipeline",
    ("sd", "instruct"): "StableDiffusionInstructPix2PixPipeline",
    ("sd", "depth"): "StableDiffusionDepth2ImgPipeline",
    ("sdxl", ""): "StableDiffusionXLPipeline",
    ("sdxl", "inpainting"): "StableDiffusionXLInpaintPipeline",
    ("sdxl", "instruct"): "StableDiffusionXLInstructPix2PixPipeline",
    ("sdxl_refiner", ""): "StableDiffusionXLImg2ImgPipeline",
}
_NO_CLASS = [None, None]


def folder_states(folder: Path, parts: tuple[str, ...]) -> dict[str, dict[str, LazyTensor]]:
    """Return the tensors of a folder's parts, to be read when asked for, with the names that files have.

    Raises DarkroomError where a part has no safetensors file, or a broken one.
    """
    return {part: file_state(part, _part_tensors(folder / part, part)) for part in parts}


def folder_configs(folder: Path, parts: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the configs of a folder's parts and of its scheduler. Raises DarkroomError where one is missing."""
    configs = {part: read_json(folder, part, "config.json") for part in parts}
    return {**configs, "scheduler": read_json(folder, "scheduler", "scheduler_config.json")}


def write_folder(
    destination: Path,
    states: States,
    configs: Configs,
    traits: CheckpointTraits,
    *,
    dtype: torch.dtype | None,
    tokenizers_from: Path | None = None,
    on_written: OnWritten | None = None,
) -> None:
    """Write a model as a diffusers folder. `tokenizers_from` is a folder whose tokenizers are taken over.

    Raises DarkroomError, and leaves what was there, where a tensor is missing, unknown or not finite.
    """
    parts = layouts(traits.model, configs)
    named = {part: file_state(part, states.get(part, {})) for part in parts}
    for part, layout in parts.items():
        require_keys(part, {s.key for s in layout.slots}, named[part])
    total = sum(t.num_bytes for state in named.values() for t in state.values())
    done = 0
    with atomic_folder(destination) as folder:
        for part, state in named.items():
            before, size = done, sum(t.num_bytes for t in state.values())

            def report(written: int, all_of_it: int, before: int = before, size: int = size) -> None:
                if on_written is not None:
                    on_written(before + round(size * written / max(all_of_it, 1)), total)

            (folder / part).mkdir()
            file = folder / part / f"{_WEIGHTS.get(part, 'model')}.safetensors"
            write_safetensors(file, state, {"format": "pt"}, dtype=dtype, on_written=report)
            _write_json(folder / part / "config.json", _part_config(part, configs[part]))
            done += size
        _write_scheduler(folder, configs["scheduler"], traits)
        tokenizers = [p.replace("text_encoder", "tokenizer") for p in parts if p.startswith("text_encoder")]
        for name in tokenizers:
            _write_tokenizer(
                folder / name, tokenizers_from, pads_with_bang=name == "tokenizer_2" or "sd2" in traits.model
            )
        _write_json(folder / "model_index.json", _index(traits, tuple(parts), configs["scheduler"]))


def traits_of(kind: FileKind) -> CheckpointTraits:
    """Return what a recognised model is, as the writers want it. Raises DarkroomError for what cannot be converted."""
    if not kind.is_model:
        raise DarkroomError(f"This is no whole model of SD 1.x, SD 2.x or SDXL. {kind.sentence}")
    if kind.prediction == "edm":
        raise DarkroomError(f"Models of the EDM kind are not converted. {kind.sentence}")
    return CheckpointTraits(kind.model, kind.prediction or "epsilon", kind.zero_snr, kind.variant)


def _part_tensors(folder: Path, part: str) -> dict[str, LazyTensor]:
    """Return a part's tensors: of one file or of several with an index, the plain ones before variants."""
    stem = _WEIGHTS.get(part, "model")
    plain = folder / f"{stem}.safetensors"
    files = [plain] if plain.is_file() else sorted(folder.glob(f"{stem}-*-of-*.safetensors"))
    files = files or sorted(folder.glob(f"{stem}.*.safetensors"))[:1]
    if not files:
        raise DarkroomError(
            f"The {part} of the model in {folder.parent} has no weights as .safetensors.",
            advice="Download the model again, with its safetensors files.",
        )
    tensors: dict[str, LazyTensor] = {}
    for file in files:
        tensors |= stored_tensors(file)[0]
    return tensors


def _part_config(part: str, config: Mapping[str, Any]) -> dict[str, Any]:
    if part in _WEIGHTS:
        return {**config, "_class_name": _CLASSES[part][1]}
    return {**config, "architectures": [_CLASSES[part][1]]}


def _write_scheduler(folder: Path, config: Mapping[str, Any], traits: CheckpointTraits) -> None:
    changed = {**config, "prediction_type": traits.prediction}
    if traits.zero_snr:
        changed |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    (folder / "scheduler").mkdir()
    _write_json(folder / "scheduler" / "scheduler_config.json", changed)


def _write_tokenizer(folder: Path, source: Path | None, *, pads_with_bang: bool) -> None:
    if source is not None and (source / folder.name).is_dir():
        shutil.copytree(source / folder.name, folder)
        return
    # Imported here: the vocabulary is a family's, and no other part of the formats needs it.
    from modules.families.parts.clip_vocabulary import END_TOKEN, START_TOKEN, clip_merges, clip_vocabulary

    folder.mkdir()
    pad = "!" if pads_with_bang else END_TOKEN
    _write_json(folder / "vocab.json", clip_vocabulary())
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in clip_merges())]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    special = {"bos_token": START_TOKEN, "eos_token": END_TOKEN, "unk_token": END_TOKEN, "pad_token": pad}
    _write_json(folder / "special_tokens_map.json", special)
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True}
    _write_json(folder / "tokenizer_config.json", {**settings, "add_prefix_space": False, **special})


def _index(traits: CheckpointTraits, parts: tuple[str, ...], scheduler: Mapping[str, Any]) -> dict[str, Any]:
    family = traits.model if traits.model == "sdxl_refiner" else FAMILY_OF[traits.model]
    pipeline = _PIPELINES.get((family, traits.variant), _PIPELINES[family, ""])
    index: dict[str, Any] = {"_class_name": pipeline}
    for part in parts:
        index[part] = list(_CLASSES[part])
        if part.startswith("text_encoder"):
            index[part.replace("text_encoder", "tokenizer")] = ["transformers", "CLIPTokenizer"]
    index["scheduler"] = ["diffusers", scheduler.get("_class_name", "DDIMScheduler")]
    if family == "sd":
        return {**index, "safety_checker": _NO_CLASS, "feature_extractor": _NO_CLASS}
    index["force_zeros_for_empty_prompt"] = family == "sdxl"
    if family == "sdxl_refiner":
        index |= {"text_encoder": _NO_CLASS, "tokenizer": _NO_CLASS, "requires_aesthetics_score": True}
    return index


def _write_json(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
