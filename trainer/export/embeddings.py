"""Exporting trained embeddings: as the result of a run, or next to it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from modules.config.schema import Config
from modules.families.embeddings import Embedding
from modules.families.protocol import ModelFamily
from modules.formats.safetensors_io import OnWritten, payload_sha256, write_safetensors
from modules.system.devices import dtype_of
from trainer.export.exporter import Exporter, SaveMoment, Values, date_metadata, result_metadata
from trainer.run_folder.result import embeddings_folder

_NOT_IN_NAMES = re.compile(r"[^\w.+-]+")


@dataclass(frozen=True, eq=False)
class EmbeddingExporter:
    """Exports one embedding."""

    embedding: Embedding
    family: ModelFamily
    config: Config
    thumbnail: Callable[[], str] = str
    suffix: str = ".safetensors"

    def save(self, path: Path, values: Values, moment: SaveMoment, on_written: OnWritten | None = None) -> None:
        """Write the embedding whose trained rows are in `values`; see `Exporter`."""
        output = self.config.output
        tensors = self.embedding.tensors(values, self.family.spec.text.embedding_tensors)
        dtype = dtype_of("float16" if output.dtype == "float8" else output.dtype)  # no program reads it in float8
        metadata = {
            "modelspec.sai_model_spec": "1.0.1",
            "modelspec.architecture": f"{self.family.lora_naming.architecture}/textual-inversion",
            "modelspec.implementation": "diffusers",
            "modelspec.hash_sha256": f"0x{payload_sha256(tensors, dtype=dtype)}",
            **date_metadata(path.stem, moment),
            **result_metadata(self.config, moment, self.thumbnail),
            "modelspec.trigger_phrase": self.embedding.placeholder,
        }
        write_safetensors(path, tensors, metadata, dtype=dtype, on_written=on_written)


@dataclass(frozen=True, eq=False)
class ExporterWithEmbeddings:
    """Exports a result, and embeddings in a folder of files next to it."""

    main: Exporter
    exporters: Sequence[EmbeddingExporter]

    @property
    def suffix(self) -> str:
        """See `Exporter`."""
        return self.main.suffix

    def save(self, path: Path, values: Values, moment: SaveMoment, on_written: OnWritten | None = None) -> None:
        """Write the result and then each embedding, all atomically; see `Exporter`."""
        self.main.save(path, values, moment, on_written)
        for exporter in self.exporters:
            file = embeddings_folder(path) / f"{file_name_of(exporter.embedding.placeholder)}{exporter.suffix}"
            exporter.save(file, values, moment)


def with_embeddings(
    main: Exporter, embeddings: Sequence[Embedding], family: ModelFamily, config: Config, thumbnail: Callable[[], str]
) -> Exporter:
    """Return an exporter that also writes embeddings next to the result; `main` without any."""
    exporters = [EmbeddingExporter(e, family, config, thumbnail) for e in embeddings]
    return ExporterWithEmbeddings(main, exporters) if exporters else main


def file_name_of(placeholder: str) -> str:
    """Return the name of an embedding's file without its suffix: other programs use it as the word in prompts."""
    return _NOT_IN_NAMES.sub("_", placeholder).strip("_.") or "embedding"
