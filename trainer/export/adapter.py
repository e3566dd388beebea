"""Exporting a trained adapter as a file that other programs read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path

from modules.adapters.protocol import Adapter, AdapterKind, kind_of
from modules.adapters.registry import ADAPTERS
from modules.adapters.spec import NetworkMetadata
from modules.adapters.start import Start, layers_to_write, tensors_to_write
from modules.config.schema import Config
from modules.config.usage import adapter_form
from modules.data.dataset import Dataset
from modules.families.embeddings import Embedding, bundled_embeddings
from modules.families.lora_naming import LoraNaming
from modules.families.parts.single_file.models import CONFIGS_KEY
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.float8 import adapter_in_float8, rest_in_float16
from modules.formats.lazy_tensors import lazy_state
from modules.formats.lora_files import rank_and_alpha
from modules.formats.metadata import DatasetFacts, LoraFacts, lora_metadata
from modules.formats.safetensors_io import OnWritten, payload_sha256, write_safetensors
from modules.settings.shared_types import side_of
from modules.system.devices import dtype_of
from trainer.export.exporter import SaveMoment, Values, result_metadata
from trainer.export.metadata import dataset_facts, training_settings


@dataclass(frozen=True, eq=False)
class AdapterExporter:
    """Exports the run's adapters with metadata, and the layers that it keeps of the file it started from (`start`).

    `thumbnail()` returns an image as a data URL, or an empty string; `started` is when the run started, and
    `total_steps` its length (0: unknown). `bundled` are the embeddings that are written into the file, with the names
    of the family's `embedding_tensors`.
    """

    adapters: Sequence[Adapter]
    naming: LoraNaming
    config: Config
    dataset: Dataset
    thumbnail: Callable[[], str] = str
    suffix: str = ".safetensors"
    started: datetime | None = None
    total_steps: int = 0
    start: Start | None = None
    bundled: Sequence[Embedding] = ()
    embedding_tensors: Mapping[str, str] = field(default_factory=dict)

    def save(self, path: Path, values: Values, moment: SaveMoment, on_written: OnWritten | None = None) -> None:
        """Write the adapters; see `Exporter`.

        Kept layers are written bit for bit as they are in the start file, in the config's dtype where that is another.
        """
        output = self.config.output
        layers = [layer for adapter in self.adapters for layer in adapter.stored_layers(values)]
        tensors, form_metadata = tensors_to_write(
            self._kind, layers, self.start, adapter_form(self.config), self.naming
        )
        dtype = None
        embeddings = lazy_state(bundled_embeddings(self.bundled, values, self.embedding_tensors))
        if output.dtype == "float8":
            tensors = adapter_in_float8(tensors, ADAPTERS[self.config.adapter.name].float8_factors)
            embeddings = rest_in_float16(embeddings)
        else:
            dtype = dtype_of(output.dtype)
        tensors = {**tensors, **embeddings}
        facts = self._facts(path.stem, layers, moment)
        of_result = result_metadata(self.config, moment, self.thumbnail)
        metadata = lora_metadata(facts, of_result, payload_sha256=payload_sha256(tensors, dtype=dtype))
        if self.naming.own_configs:
            metadata[CONFIGS_KEY] = self.naming.own_configs
        write_safetensors(path, tensors, metadata | form_metadata, dtype=dtype, on_written=on_written)

    @property
    def _kind(self) -> AdapterKind:
        return kind_of(ADAPTERS[self.config.adapter.name])

    def _rank_and_alpha(self, trained: Sequence[AdapterLayer], network: NetworkMetadata) -> tuple[int, float]:
        """Return rank and alpha of the written layers, which differ from the settings if the start file has others."""
        if rank_and_alpha(trained) is None:  # not a LoRA
            return network.rank, network.alpha
        kept = layers_to_write(self.start, adapter_form(self.config))
        rank, alpha = rank_and_alpha([*trained, *kept]) or (network.rank, network.alpha)
        # Other programs divide the alpha of a rank-stabilized LoRA by the square root of the rank.
        return rank, network.alpha if "rs_lora" in network.args else alpha

    @cached_property  # with a million images, seconds of each save
    def _dataset_facts(self) -> DatasetFacts | None:
        return dataset_facts(self.dataset, self.config.output.embed_dataset, run_seed=self.config.general.seed)

    @cached_property
    def _settings(self) -> dict[str, str]:
        return training_settings(
            self.config, self.dataset, trained=[a.part for a in self.adapters], total_steps=self.total_steps
        )

    def _facts(self, title: str, trained: Sequence[AdapterLayer], moment: SaveMoment) -> LoraFacts:
        network_of = ADAPTERS[self.config.adapter.name].network
        assert network_of is not None  # only an adapter that is not supported yet has none
        network = network_of(self.config.adapter)
        rank, alpha = self._rank_and_alpha(trained, network)
        return LoraFacts(
            title=title,
            base_model=Path(self.config.model.base_model).name,
            base_version=self.naming.base_version,
            is_v2=self.naming.is_v2,
            architecture=self.naming.architecture,
            rank=rank,
            alpha=alpha,
            resolution_px=max(map(side_of, self.config.data.resolution_px)),
            clip_skip=self.config.model.family.skipped_layers("text_encoder"),
            seed=self.config.general.seed,
            created=moment.now,
            started=self.started,
            dataset=self._dataset_facts,
            settings=self._settings,
            network_module=network.module,
            network_args=network.args,
            prediction=self.naming.prediction,
        )
