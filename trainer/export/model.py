"""Exporting a fine-tuned model: all of its parts with the trained weights, as a single file or a folder; or a trained
VAE alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from modules.config.schema import Config
from modules.families.parts.folder_model import write_folder
from modules.families.parts.single_file.autoencoder import vae_slots_of
from modules.families.parts.single_file.moves import to_original
from modules.families.parts.single_file.write import CheckpointTraits, file_state, require_keys, write_checkpoint
from modules.families.protocol import ModelFamily, Part
from modules.formats.float8 import matrices_in_float8, rest_in_float16
from modules.formats.lazy_tensors import LazyTensor, lazy
from modules.formats.safetensors_io import OnWritten, write_safetensors
from modules.system.atomic import atomic_folder
from modules.system.devices import dtype_of
from trainer.export.exporter import SaveMoment, Values, date_metadata, model_suffix, result_metadata


@dataclass(frozen=True, eq=False)
class ModelExporter:
    """Exports the run's model in the format of its config."""

    family: ModelFamily
    config: Config
    thumbnail: Callable[[], str] = str

    @property
    def suffix(self) -> str:
        """See `Exporter`."""
        return model_suffix(self.config)

    def save(self, path: Path, values: Values, moment: SaveMoment, on_written: OnWritten | None = None) -> None:
        """Write the model with its trained weights, streamed; see `Exporter`."""
        output = self.config.output
        parts = {name: part for name, part in self.family.parts.items() if part.spec.is_in_base_model}
        states = {name: state_of(name, part, values) for name, part in parts.items()}
        if output.dtype == "float8":
            denoiser = self.family.spec.denoiser
            states = {
                n: matrices_in_float8(s, denoiser.model.never_quantized) if n == denoiser.name else rest_in_float16(s)
                for n, s in states.items()
            }
        scheduler = self.family.scheduler_config()
        configs = {name: config_of(part) for name, part in parts.items()} | {"scheduler": dict(scheduler)}
        naming = self.family.lora_naming
        traits = CheckpointTraits(
            naming.model,
            prediction=naming.prediction,
            zero_snr=bool(scheduler.get("rescale_betas_zero_snr")),
            variant=naming.variant,
        )
        is_scaled = output.dtype == "scaled_float8"
        dtype = None if output.dtype == "float8" or is_scaled else dtype_of(output.dtype)
        metadata = result_metadata(self.config, moment, self.thumbnail)
        if output.model_format == "diffusers":  # title and date, which its files would not show
            metadata |= date_metadata(path.name, moment)
            write_folder(
                path,
                states,
                configs,
                traits,
                dtype=dtype,
                tokenizers_from=self.family.folder,
                metadata=metadata,
                on_written=on_written,
            )
            return
        write_checkpoint(
            path,
            states,
            configs,
            traits,
            dtype=dtype,
            title=path.stem,
            created=moment.now,
            metadata=metadata,
            on_written=on_written,
            is_scaled_float8=is_scaled,
        )


def state_of(name: str, part: Part, values: Mapping[str, torch.Tensor]) -> dict[str, LazyTensor]:
    """Return a part's tensors, the trained ones from `values`."""
    return {key: lazy(values.get(f"{name}.{key}", tensor)) for key, tensor in part.module.state_dict().items()}


def config_of(part: Part) -> dict[str, Any]:
    """Return a part's config as in its file, without the path it was loaded from."""
    config: Any = part.module.config  # diffusers' is a mapping, transformers' an object
    settings = config.to_dict() if hasattr(config, "to_dict") else dict(config)
    return {key: value for key, value in settings.items() if key != "_name_or_path"}


_WEIGHTS = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True, eq=False)
class AutoencoderExporter:
    """Exports the run's VAE in the format of its config."""

    part: Part
    config: Config

    @property
    def suffix(self) -> str:
        """See `Exporter`."""
        return model_suffix(self.config)

    def save(self, path: Path, values: Values, moment: SaveMoment, on_written: OnWritten | None = None) -> None:
        """Write the VAE with its trained weights, streamed; see `Exporter`."""
        settings = config_of(self.part)
        model = self.part.spec.model
        state = file_state(model, state_of(self.part.spec.name, self.part, values))
        slots = () if model.vae_file is None else vae_slots_of(model, settings)
        if slots:  # others are saved as folders alone
            require_keys(self.part.spec.label, {s.key for s in slots}, state)
        dtype = dtype_of(self.config.output.dtype)
        title = path.stem if self.suffix else path.name
        metadata = result_metadata(self.config, moment) | date_metadata(title, moment)
        if self.suffix:
            write_safetensors(path, to_original(slots, state), metadata, dtype=dtype, on_written=on_written)
            return
        with atomic_folder(path) as folder:
            written = {**metadata, "format": "pt"}
            write_safetensors(folder / _WEIGHTS, state, written, dtype=dtype, on_written=on_written)
            text = json.dumps({**settings, "_class_name": self.part.spec.class_name}, indent=2, ensure_ascii=False)
            (folder / "config.json").write_text(f"{text}\n", encoding="utf-8", newline="\n")
