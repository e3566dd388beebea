"""Reads a single-file checkpoint as the parts of a diffusers model.

    checkpoint = open_checkpoint(path)
    vae = load_part(checkpoint, "vae", AutoencoderKL, torch.float16)

Only headers are read until a part is loaded, then tensor by tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import init
from torch.overrides import TorchFunctionMode

from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.identify import identify
from modules.families.model_class import ModelClass
from modules.families.parts.single_file.autoencoder import VAE_PREFIX, vae_names, vae_slots_of
from modules.families.parts.single_file.denoiser_file import packed_layers
from modules.families.parts.single_file.fill import fill_part
from modules.families.parts.single_file.models import (
    averaged_names,
    configs_of_file,
    layouts,
    left_over_names,
    missing_names,
    original_names,
)
from modules.families.parts.single_file.moves import from_original, identity_matrix, inward
from modules.families.parts.single_file.packed_weights import is_scaled_matrix, part_tensors
from modules.families.parts.single_file.record import Configs, PartLayout
from modules.families.protocol import StaysPacked, never_packed, read_with_part
from modules.families.registry import FAMILIES, all_files, published_model
from modules.families.spec import FamilySpec, PartSpec
from modules.formats.lazy_tensors import LazyTensor
from modules.formats.stored_tensors import read_stored
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from modules.system.file_errors import plain_reason


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """An opened single file: its kind, its parts' configs and layouts, and its tensors by their original names."""

    path: Path
    kind: FileKind
    configs: Mapping[str, Mapping[str, Any]]
    layouts: Mapping[str, PartLayout]
    tensors: Mapping[str, LazyTensor]
    metadata: Mapping[str, str]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts whose weights are in the file."""
        return tuple(n for n, part in self.layouts.items() if any(k.startswith(part.prefix) for k in self.tensors))

    @property
    def denoiser(self) -> PartSpec:
        """The part of its family that denoises."""
        return FAMILIES[self.kind.family].denoiser

    @property
    def companions(self) -> dict[str, LazyTensor]:
        """The tensors of further networks that its variant's files have, by their full names."""
        record = published_model(self.kind.model).single_file
        prefix = record.companions.get(self.kind.variant, "") if record is not None else ""
        return {n: t for n, t in self.tensors.items() if n.startswith(prefix)} if prefix else {}

    def scheduler_config(self) -> dict[str, Any]:
        """Return the noise schedule's config, with the prediction type of the file."""
        config = dict(self.configs["scheduler"])
        if self.kind.prediction in ("epsilon", "v_prediction"):
            config["prediction_type"] = self.kind.prediction
        if self.kind.zero_snr:
            config |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
        return config


def open_checkpoint(path: Path, kind: FileKind | None = None, *, part_configs: Configs | None = None) -> Checkpoint:
    """Open a .safetensors or .ckpt file of a model.

    `kind` avoids identifying it twice; `part_configs` replace the published model's for a file of a different size
    without its own. Raises DarkroomError, with a description of the file, where it is not such a model.
    """
    kind = kind or identify(path)
    if kind.kind not in ("checkpoint", "part") or not kind.model:
        raise DarkroomError(
            f"{path.name} is not a checkpoint of a supported model. {kind.sentence}",
            advice=f"Choose a checkpoint of {_labels()}, as .safetensors, .ckpt or a diffusers folder.",
        )
    stored, metadata = read_stored(path)
    tensors = {original: stored[name] for original, name in original_names(kind.model, stored).items()}
    configs = configs_of_file(kind.model, {n: t.shape for n, t in tensors.items()}, metadata)
    configs |= {name: dict(config) for name, config in (part_configs or {}).items()}
    parts = layouts(kind.model, configs)
    checkpoint = Checkpoint(path, kind, configs, parts, tensors, metadata)
    if kind.facts.get("ema") == "alone":
        layout = parts[checkpoint.denoiser.name]
        tensors |= {original: tensors[name] for original, name in averaged_names(layout, tensors).items()}
    return checkpoint


def part_state(checkpoint: Checkpoint, part: str, *, use_ema: bool = False) -> dict[str, LazyTensor]:
    """Return a part's lazy tensors under diffusers' names, text layers with "text_model.".

    `use_ema` selects the denoiser's EMA weights where the file has them besides the others; those that are alone are
    always used. Raises DarkroomError if the part or some of its weights are missing, or the denoiser has unknown
    layers.
    """
    layout = checkpoint.layouts.get(part)
    if layout is None or part not in checkpoint.parts:
        raise _lacks_part(checkpoint, part)
    tensors = dict(checkpoint.tensors)
    denoiser = checkpoint.denoiser
    if use_ema and part == denoiser.name:
        tensors |= {original: tensors[name] for original, name in averaged_names(layout, tensors).items()}
    if missing := missing_names(layout, tensors):
        label = FAMILIES[checkpoint.kind.family].part_labels[part]
        raise DarkroomError(
            f"{len(missing)} weights of the {label} are missing from {checkpoint.path.name}; the first is "
            f"{missing[0]}.",
            advice="Download it again. If this persists, it is a kind of model that is not supported.",
        )
    if part == denoiser.name and (extra := left_over_names(layout, tensors)):
        raise DarkroomError(
            f"The {denoiser.label} in {checkpoint.path.name} has {len(extra)} weights that this architecture does not "
            f"have; the first is {extra[0]}.",
            advice="The model is a variant that is not supported. Choose another model.",
        )
    inside = {n.removeprefix(layout.prefix): t for n, t in tensors.items() if n.startswith(layout.prefix)}
    return from_original(layout.slots, inside)


def load_part(
    checkpoint: Checkpoint,
    part: str,
    kind: Any,
    dtype: torch.dtype,
    *,
    use_ema: bool = False,
    is_read_later: Callable[[str], bool] = read_with_part,
) -> Any:
    """Return one part of a checkpoint, on the CPU, in eval mode, frozen, as `diffusers_folder.read_part` does.

    `kind` is the diffusers or transformers class. Raises DarkroomError if the file does not contain it.
    """
    state = part_state(checkpoint, part, use_ema=use_ema)
    return build_part(
        kind,
        checkpoint.configs[part],
        state,
        dtype,
        where=f"the {part} in {checkpoint.path.name}",
        library_prefix=checkpoint.layouts[part].library_prefix,
        is_read_later=is_read_later,
    )


def load_vae_file(path: Path, model: ModelClass, config: Mapping[str, Any], dtype: torch.dtype) -> Any:
    """Return the VAE of a VAE file or of a checkpoint, in the original or in diffusers' layout, or of a VAE's folder.

    `config` is the VAE config of the model it is used with: the file does not contain its scaling factor. Raises
    DarkroomError if the file has no VAE.
    """
    file_kind = identify(path)
    stored, _ = read_stored(_weights_in(path) if path.is_dir() else path)
    layout = PartLayout("vae", VAE_PREFIX, vae_slots_of(model, config))
    if _is_in_diffusers_layout(stored, model):
        state = {n.removeprefix("vae."): t for n, t in stored.items()}
        if model.file_key:  # of old files
            state = {load_factory(model.file_key)(n): t for n, t in state.items()}
            state = {n: t.then(t.shape[:2], _as_matrix) if _is_old_matrix(n, t) else t for n, t in state.items()}
    else:
        tensors = {original: stored[name] for original, name in vae_names(stored).items()}
        if missing := missing_names(layout, tensors):
            raise DarkroomError(
                f"{path.name} does not contain a complete VAE: {len(missing)} weights are missing. "
                f"{file_kind.sentence}",
                advice="Choose another VAE file.",
            )
        inside = {n.removeprefix(layout.prefix): t for n, t in tensors.items() if n.startswith(layout.prefix)}
        state = from_original(layout.slots, inside)
    return build_part(load_factory(model.reference), config, state, dtype, where=f"the VAE in {path.name}")


def _is_in_diffusers_layout(names: Iterable[str], model: ModelClass) -> bool:
    marks = model.vae_file.diffusers if model.vae_file is not None else ()
    names = {name.removeprefix("vae.") for name in names}
    return all(any(name.startswith(mark) for name in names) for mark in marks)


def load_part_file(
    path: Path,
    spec: FamilySpec,
    part: PartSpec,
    config: Mapping[str, Any],
    dtype: torch.dtype,
    *,
    stays_packed: StaysPacked = never_packed,
    is_read_later: Callable[[str], bool] = read_with_part,
) -> Any:
    """Return the denoiser or a text encoder of a file, built from the base model's `config` of the part.

    The linear layers that the file has packed and `stays_packed` takes have weights on the meta device: they are read
    as they are stored. Raises DarkroomError if the file has no such part, or one of another size.
    """
    stored, _ = read_stored(path)
    module = empty_part(load_factory(part.model_class), config)
    tensors = part_tensors(spec, part, module, stored, file=path.name)
    linear = {name for name, layer in module.named_modules() if type(layer) is torch.nn.Linear}
    blocks = packed_layers(spec.name, part, path, config)
    rows = (n.removesuffix(".weight") for n, t in tensors.items() if is_scaled_matrix(stored[t.name], t.slot))
    left_out = {f"{layer}.weight" for layer in blocks if layer in linear and stays_packed(part.name, layer, "gguf")}
    left_out |= {f"{layer}.weight" for layer in rows if layer in linear and stays_packed(part.name, layer, "float8")}
    state = {ours: inward(tensor.slot, stored[tensor.name]) for ours, tensor in tensors.items()}
    for name in part.model.identity_if_missing - state.keys():
        state[name] = identity_matrix(module.get_parameter(name).shape[0])
    return fill_part(
        module,
        state,
        dtype,
        where=f"the {part.label} in {path.name}",
        left_out=left_out,
        is_read_later=is_read_later,
    )


def _weights_in(folder: Path) -> Path:
    """Return the file of the weights in a VAE's folder. Raises DarkroomError where there is none."""
    files = sorted(folder.glob("diffusion_pytorch_model*.safetensors"), key=lambda file: len(file.name))
    if not files:
        raise DarkroomError(
            f"The folder {folder} contains no weights of a VAE.",
            advice="Choose a VAE file, or a folder with diffusion_pytorch_model.safetensors.",
        )
    return files[0]


def build_part(
    kind: Any,
    config: Mapping[str, Any],
    state: Mapping[str, LazyTensor],
    dtype: torch.dtype,
    *,
    where: str,
    library_prefix: str = "",
    is_read_later: Callable[[str], bool] = read_with_part,
) -> Any:
    """Return a module built from a config and a state's tensors, each read and cast to `dtype` on its own.

    The weights of the linear layers that `is_read_later` takes are read when they are quantized. `library_prefix`
    starts names of the state, and in some versions of its library also names of the module.
    """
    module = empty_part(kind, config)
    if library_prefix and not any(n.startswith(library_prefix) for n in module.state_dict()):
        state = {n.removeprefix(library_prefix): tensor for n, tensor in state.items()}
    return fill_part(module, state, dtype, where=where, is_read_later=is_read_later)


def empty_part(kind: Any, config: Mapping[str, Any]) -> Any:
    """Return a module of a config without memory behind its weights (PyTorch's meta device)."""
    try:
        with torch.device("meta"), _NoInitialValues():
            if hasattr(kind, "from_config"):  # a class of diffusers
                return kind.from_config({k: v for k, v in config.items() if k != "_class_name"})
            return kind(kind.config_class(**config))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise DarkroomError(f"The config of a part of the model is not valid: {plain_reason(error)}.") from error


_INITIAL_VALUES = frozenset({init.normal_, init.uniform_, init.constant_, init.kaiming_uniform_})
"""The functions of initial values that call a mode first, with their arguments by name."""


class _NoInitialValues(TorchFunctionMode):
    """Leaves weights without memory as they are: drawing their values took most of the time of Wuerstchen."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in _INITIAL_VALUES and given["tensor"].is_meta:
            return given["tensor"]
        return func(*args, **given)


def _is_old_matrix(name: str, tensor: LazyTensor) -> bool:
    return ".attentions." in name and len(tensor.shape) == 4


def _as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(tensor.shape[:2])


def _labels() -> str:
    """Return the labels of the models that a single file can have, as a list in words."""
    return ", ".join(dict.fromkeys(m.label for files in all_files() for m in files.models if m.single_file))


def _lacks_part(checkpoint: Checkpoint, part: str) -> DarkroomError:
    spec = next((p for p in FAMILIES[checkpoint.kind.family].parts if p.name == part), None)
    label = part.replace("_", " ") if spec is None or spec.role == "text_encoder" else spec.label
    is_vae = spec is not None and spec.role == "vae"
    advice = "Choose a separate VAE file." if is_vae else "Choose a complete checkpoint."
    return DarkroomError(f"{checkpoint.path.name} contains no {label}.", advice=advice)
