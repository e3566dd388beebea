"""Exporting a trained adapter as a file that other programs read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

import torch

from modules.adapters.protocol import Adapter, AdapterKind, kind_of
from modules.adapters.registry import ADAPTERS
from modules.config.codec import encode
from modules.config.schema import Config
from modules.data.dataset import Dataset
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.families.spec import LoraNaming
from modules.formats.metadata import LoraFacts, lora_metadata, tag_frequency
from modules.formats.safetensors_io import OnWritten, payload_sha256, write_safetensors
from modules.settings.resolution import side_of
from modules.system.dtypes import dtype_of


class Exporter(Protocol):
    """Writes the trained weights of a run."""

    @property
    def suffix(self) -> str:
        """The suffix of a save's name."""
        ...

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
        """Write the trained weights `values`, by full parameter name, to a path, atomically.

        `on_written(done, total)` gets the bytes after each tensor and may raise to end the write; no file is left then.
        """
        ...


@dataclass(frozen=True, eq=False)
class AdapterExporter:
    """Exports the run's adapters with metadata; `thumbnail()` returns an image as a data URL, or an empty string."""

    adapters: Sequence[Adapter]
    naming: LoraNaming
    config: Config
    dataset: Dataset
    thumbnail: Callable[[], str] = str
    suffix: str = ".safetensors"

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
        """Write the adapters whose weights are `values` (by full parameter name) in the config's format and dtype.

        Atomic: on any error an existing file stays. Raises DarkroomError if a weight is not finite.
        """
        output = self.config.output
        layers = [layer for adapter in self.adapters for layer in adapter.stored_layers(values)]
        tensors, form_metadata = self._kind.write(layers, output.format, self.naming)
        dtype = dtype_of(output.dtype)
        facts = self._facts(path.stem, now=now, step=step, epoch=epoch)
        metadata = lora_metadata(facts, payload_sha256=payload_sha256(tensors, dtype=dtype))
        if self.naming.own_configs:
            metadata[CONFIGS_KEY] = self.naming.own_configs
        write_safetensors(path, tensors, metadata | form_metadata, dtype=dtype, on_written=on_written)

    @property
    def _kind(self) -> AdapterKind:
        return kind_of(ADAPTERS[self.config.adapter.name])

    def _facts(self, title: str, *, now: datetime, step: int, epoch: int) -> LoraFacts:
        captions: dict[str, list[str]] = {c.name: [] for c in self.dataset.concepts}
        for example in self.dataset.examples:
            captions[self.dataset.concepts[example.concept].name] += example.image.captions
        network_of = ADAPTERS[self.config.adapter.name].network
        assert network_of is not None  # only an adapter that is not supported yet has none
        network = network_of(self.config.adapter)
        return LoraFacts(
            title=title,
            base_model=Path(self.config.model.base_model).name,
            base_version=self.naming.base_version,
            is_v2=self.naming.is_v2,
            architecture=self.naming.architecture,
            rank=network.rank,
            alpha=network.alpha,
            resolution_px=max(map(side_of, self.config.data.resolution_px)),
            clip_skip=self.config.model.clip_skip,
            num_images=len(self.dataset.examples),
            epochs=epoch,
            steps=step,
            seed=self.config.general.seed,
            created=now,
            network_module=network.module,
            network_args=network.args,
            prediction=self.naming.prediction,
            tag_frequency=tag_frequency(captions),
            config_json=embedded_config(self.config),
            trigger_phrase=self.config.output.trigger_words.strip(),
            thumbnail=self.thumbnail() if self.config.output.thumbnail else "",
        )


def embedded_config(config: Config) -> str:
    """Return the settings to embed, as JSON; the folders of images only if the user wants everything embedded."""
    tree = encode(config)
    match config.output.embed_config:
        case "none":
            return ""
        case "settings":
            tree = {k: v for k, v in tree.items() if k not in ("concepts", "concepts_file", "unknown")}
            tree["sampling"] = {**tree["sampling"], "prompts": [], "prompts_file": ""}
    return json.dumps(tree, sort_keys=True, ensure_ascii=False)
