"""Reads a model in diffusers' folder layout as lazy tensors, and writes one, streamed, that diffusers loads.

A folder contains the weights and config of each part, the scheduler's config, the tokenizers (CLIP's own where the
model has none) and the index that names the classes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.clip_vocabulary import END_TOKEN, START_TOKEN, clip_merges, clip_vocabulary
from modules.families.parts.files import scheduler_of
from modules.families.parts.single_file.models import layouts
from modules.families.parts.single_file.record import Configs
from modules.families.parts.single_file.write import CheckpointTraits, States, file_state, require_keys
from modules.families.published import PublishedModel
from modules.families.registry import FAMILIES, published_model
from modules.families.spec import PartSpec
from modules.formats.diffusers_folder import read_json
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.metadata import fold_metadata
from modules.formats.repository import INDEX, MODULAR_INDEX
from modules.formats.safetensors_io import TRAINED, OnWritten, write_safetensors
from modules.formats.stored_tensors import read_stored
from modules.system.atomic import atomic_folder
from modules.system.errors import DarkroomError

_NO_PART = [None, None]
_WEIGHTS = {"diffusers": "diffusion_pytorch_model", "transformers": "model"}


def parts_in(traits: CheckpointTraits, lacking: Collection[str] = ()) -> tuple[str, ...]:
    """Return the parts with weights in a folder of a model: those of the published model, or of its family.

    `lacking` are the optional parts that this model lacks.
    """
    record = published_model(traits.model)
    parts = tuple(p.name for p in FAMILIES[record.family].in_base_model.parts)
    shipped = record.shipped_configs()
    return tuple(p for p in parts if (p in shipped or not shipped) and p not in lacking)


def folder_states(folder: Path, traits: CheckpointTraits, parts: Sequence[str]) -> dict[str, dict[str, LazyTensor]]:
    """Return the lazy tensors of some parts of a folder's model, under the names used in files.

    Raises DarkroomError if a part has no safetensors file, or a broken one.
    """
    classes = {p.name: p.model for p in FAMILIES[published_model(traits.model).family].of_variant(traits.variant).parts}
    return {part: file_state(classes[part], _part_tensors(folder / part)) for part in parts}


def folder_configs(folder: Path, traits: CheckpointTraits, parts: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the configs of some parts of a folder's model and of its scheduler. Raises DarkroomError if one is
    missing.
    """
    classes = {p.name: p.model for p in FAMILIES[published_model(traits.model).family].of_variant(traits.variant).parts}
    configs = {part: dict(classes[part].own_config(read_json(folder, part, "config.json"))) for part in parts}
    return {**configs, "scheduler": scheduler_of(folder, published_model(traits.model))}


def write_folder(
    destination: Path,
    states: States,
    configs: Configs,
    traits: CheckpointTraits,
    *,
    dtype: torch.dtype | None,
    tokenizers_from: Path | None = None,
    metadata: Mapping[str, str] | None = None,
    on_written: OnWritten | None = None,
    advice: str = TRAINED,
) -> None:
    """Write a model as a diffusers folder. `tokenizers_from` is the model's own folder, whose tokenizers are copied;
    those that it does not have are CLIP's, which the program contains. Facts in its index are kept.

    `metadata`, as in a single file of the model, is stored in the denoiser's header. Parts that are published apart
    from the model are written if the model's own folder has them.

    Raises DarkroomError if a tensor is missing, unknown or not finite (`advice` is for the last); an existing folder
    is left unchanged then.
    """
    record = published_model(traits.model)
    known = layouts(traits.model, configs)
    spec = FAMILIES[record.family].of_variant(traits.variant).in_base_model
    wanted = (p for p in spec.parts if p.name in {**known, **states})
    parts = [p for p in wanted if not (p.published_in and _lacks_tokenizer(p, tokenizers_from))]
    named = {part.name: file_state(part.model, states.get(part.name, {})) for part in parts}
    for name, layout in known.items():
        require_keys(spec.part_labels[name], {s.key for s in layout.slots}, named[name])
    total = sum(t.num_bytes for state in named.values() for t in state.values())
    done = 0
    with atomic_folder(destination) as folder:
        for part in parts:
            state = named[part.name]
            before, size = done, sum(t.num_bytes for t in state.values())

            def report(written: int, part_bytes: int, before: int = before, size: int = size) -> None:
                if on_written is not None:
                    on_written(before + round(size * written / max(part_bytes, 1)), total)

            (folder / part.name).mkdir()
            file = folder / part.name / f"{_WEIGHTS[part.library]}.safetensors"
            stored = fold_metadata(metadata or {}) if part.role == "denoiser" else {}
            write_safetensors(file, state, {**stored, "format": "pt"}, dtype=dtype, on_written=report, advice=advice)
            _write_json(folder / part.name / "config.json", _part_config(part, configs[part.name]))
            done += size
        _write_scheduler(folder, configs["scheduler"], traits)
        for encoder in (p for p in parts if p.role == "text_encoder"):
            config = configs[encoder.name]
            is_open_clip, pad = config.get("hidden_act") != "quick_gelu", config.get("pad_token_id")
            pads_with_bang = is_open_clip and pad != config.get("eos_token_id", pad)
            _write_tokenizer(folder / encoder.tokenizer_folder, tokenizers_from, pads_with_bang=pads_with_bang)
        for name in record.copied:
            if tokenizers_from is not None and (tokenizers_from / name).is_dir():
                shutil.copytree(tokenizers_from / name, folder / name)
        index = _index(record, traits, parts, configs, folder, tokenizers_from)
        if record.blocks:
            _write_json(folder / MODULAR_INDEX, _modular(record, index))
        else:
            _write_json(folder / INDEX, index)


def traits_of(kind: FileKind) -> CheckpointTraits:
    """Return the writers' description of an identified model. Raises DarkroomError if it cannot be converted."""
    if not kind.is_model:
        raise DarkroomError(f"This is not a whole model of a supported family. {kind.sentence}")
    if kind.prediction == "edm":
        raise DarkroomError(f"EDM models cannot be converted. {kind.sentence}")
    return CheckpointTraits(kind.model, kind.prediction or "epsilon", kind.zero_snr, kind.variant)


def _part_tensors(folder: Path) -> dict[str, LazyTensor]:
    """Return a part's tensors, from one file or from several with an index; files without a variant come first."""
    stem = next((n for n in _WEIGHTS.values() if any(folder.glob(f"{n}*.safetensors"))), "")
    plain = folder / f"{stem}.safetensors"
    files = [plain] if plain.is_file() else sorted(folder.glob(f"{stem}-*-of-*.safetensors"))
    files = files or sorted(folder.glob(f"{stem}.*.safetensors"))[:1]
    if not files:
        raise DarkroomError(
            f"The {folder.name} of the model in {folder.parent} has no .safetensors weights.",
            advice="Download the model again with its .safetensors files.",
        )
    tensors: dict[str, LazyTensor] = {}
    for file in files:
        tensors |= read_stored(file)[0]
    return tensors


def _part_config(part: PartSpec, config: Mapping[str, Any]) -> dict[str, Any]:
    if part.library == "diffusers":
        return {**config, "_class_name": part.class_name}
    return {**config, "architectures": [part.class_name]}


def _write_scheduler(folder: Path, config: Mapping[str, Any], traits: CheckpointTraits) -> None:
    changed = {**config} if traits.prediction == "flow" else {**config, "prediction_type": traits.prediction}
    if traits.zero_snr:
        changed |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
    (folder / "scheduler").mkdir()
    _write_json(folder / "scheduler" / "scheduler_config.json", changed)


def _lacks_tokenizer(part: PartSpec, folder: Path | None) -> bool:
    return folder is None or not (folder / part.tokenizer_folder).is_dir()


def _write_tokenizer(folder: Path, source: Path | None, *, pads_with_bang: bool) -> None:
    if source is not None and (source / folder.name).is_dir():
        shutil.copytree(source / folder.name, folder)
        return
    folder.mkdir()
    pad = "!" if pads_with_bang else END_TOKEN
    _write_json(folder / "vocab.json", clip_vocabulary())
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in clip_merges())]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    special = {"bos_token": START_TOKEN, "eos_token": END_TOKEN, "unk_token": END_TOKEN, "pad_token": pad}
    _write_json(folder / "special_tokens_map.json", special)
    settings = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "do_lower_case": True}
    _write_json(folder / "tokenizer_config.json", {**settings, "add_prefix_space": False, **special})


def _index(
    record: PublishedModel,
    traits: CheckpointTraits,
    parts: Sequence[PartSpec],
    configs: Configs,
    folder: Path,
    source: Path | None,
) -> dict[str, Any]:
    index: dict[str, Any] = {
        "_class_name": record.pipelines.get(traits.variant, record.pipelines[""]),
        "_diffusers_version": version("diffusers"),  # without it, diffusers does not load an inpainting model
    }
    for part in parts:
        index[part.name] = [part.library, part.class_name]
        if part.role == "text_encoder":
            tokenizer = part.tokenizer_folder
            settings = read_json(folder, tokenizer, "tokenizer_config.json")
            index[tokenizer] = ["transformers", settings.get("tokenizer_class", "CLIPTokenizer")]
    for part in FAMILIES[record.family].in_base_model.parts:
        if (part.optional or part.published_in) and part.name not in index:  # as diffusers marks what a pipeline lacks
            index |= {part.name: [None, None], part.tokenizer_folder: [None, None]}
    index["scheduler"] = ["diffusers", configs["scheduler"].get("_class_name", "DDIMScheduler")]
    facts = {**record.index, **record.variant_index.get(traits.variant, {})}
    source_index = read_json(source, INDEX) if source is not None and (source / INDEX).is_file() else {}
    index |= {name: source_index[name] for name in record.copied if name in source_index and (folder / name).is_dir()}
    return {
        **index,
        **{name: usual if usual == _NO_PART else source_index.get(name, usual) for name, usual in facts.items()},
    }


def _modular(record: PublishedModel, index: Mapping[str, Any]) -> dict[str, Any]:
    """Return the index of a modular pipeline, where each part also has its place; diffusers prefers the folder."""

    def entry(name: str, value: Any) -> Any:
        if not isinstance(value, list):
            return value
        place = {"pretrained_model_name_or_path": record.repository, "subfolder": name, "variant": None}
        return [*value, {**place, "revision": None, "type_hint": value}]

    return {**{name: entry(name, value) for name, value in index.items()}, "_blocks_class_name": record.blocks}


def _write_json(file: Path, data: Any) -> None:
    file.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8", newline="\n")
