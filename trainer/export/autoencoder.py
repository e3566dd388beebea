"""Exporting a trained VAE: as a single file in the original layout, which the programs take as a VAE, or as a folder.

The file has no prefix before "encoder." and "decoder.", as published VAE files (formats.md); the folder has the config
with the scaling factor and whether the VAE overflows in float16.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import torch

from modules.config.schema import Config
from modules.families.parts.single_file.moves import to_original
from modules.families.parts.single_file.vae_layout import vae_slots
from modules.families.parts.single_file.write import file_state, require_keys
from modules.families.protocol import Part
from modules.formats.safetensors_io import OnWritten, write_safetensors
from modules.system.atomic import atomic_folder
from modules.system.devices import dtype_of
from trainer.export.embedded_config import embedded_config
from trainer.export.model import config_of, state_of

_WEIGHTS = "diffusion_pytorch_model.safetensors"


@dataclass(frozen=True, eq=False)
class AutoencoderExporter:
    """Exports the run's VAE in the format of its config."""

    part: Part
    config: Config

    @property
    def suffix(self) -> str:
        """The suffix of a save's name; empty for a folder."""
        return ".safetensors" if self.config.output.model_format == "single_file" else ""

    def save(
        self,
        path: Path,
        values: Mapping[str, torch.Tensor],
        *,
        now: datetime,
        step: int,
        epoch: int,
        on_written: OnWritten | None = None,
    ) -> None:
        """Write the VAE with its trained weights `values` (by full parameter name) in the config's format and dtype.

        Streamed and atomic: on any error an existing VAE stays. Raises DarkroomError if a weight is not finite.
        """
        settings = config_of(self.part)
        state = file_state(self.part.spec.role, state_of(self.part.spec.name, self.part, values))
        slots = vae_slots(settings)
        require_keys(self.part.spec.label, {s.key for s in slots}, state)
        dtype = dtype_of(self.config.output.dtype)
        metadata = {
            "darkroom_config": embedded_config(self.config),
            "modelspec.title": path.stem if self.suffix else path.name,
            "modelspec.date": now.isoformat(timespec="seconds"),
            "ss_steps": str(step),
            "ss_num_epochs": str(epoch),
            "software": "Darkroom",
        }
        metadata = {key: text for key, text in metadata.items() if text}
        if self.suffix:
            write_safetensors(path, to_original(slots, state), metadata, dtype=dtype, on_written=on_written)
            return
        with atomic_folder(path) as folder:
            written = {**metadata, "format": "pt"}
            write_safetensors(folder / _WEIGHTS, state, written, dtype=dtype, on_written=on_written)
            text = json.dumps({**settings, "_class_name": self.part.spec.class_name}, indent=2, ensure_ascii=False)
            (folder / "config.json").write_text(f"{text}\n", encoding="utf-8", newline="\n")
