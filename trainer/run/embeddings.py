"""The embeddings of a run: their rows on the text encoders, their training units, and their copies for a resume."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import nn

from modules.config.schema import Config
from modules.config.sections.embeddings import EmbeddingSettings
from modules.config.usage import embedding_rates, embeddings_in_use, key_of_embedding, rate_factor_of, trained_encoders
from modules.families.embeddings import Embedding
from modules.families.parts.token_rows import start_rows, typical_norm
from modules.families.protocol import FamilyWithEmbeddings, ModelFamily
from modules.formats.adapter_names import OUTPUT_SUFFIX
from modules.formats.embedding_file import read_embedding
from modules.formats.safetensors_io import read_safetensors, write_safetensors
from modules.optim.param_groups import TrainGroup
from modules.optim.updates.weight_norms import RowNorms
from modules.system.devices import dtype_of
from modules.system.paths import from_root
from modules.system.seeds import derive_seed


def attach_embeddings(config: Config, family: ModelFamily, *, copies: Path | None) -> list[Embedding]:
    """Add the embeddings of a config to the text encoders of a family and return them; none if it has none.

    `copies` is the folder of the run's copies of the files that they start from: each is read if it exists,
    otherwise written. Raises DarkroomError for a file that does not fit.
    """
    if not embeddings_in_use(config):
        return []
    extendable = cast(FamilyWithEmbeddings, family)
    used = embeddings_in_use(config)
    stored = [_read_vectors(settings, extendable, copies) for settings in used]
    embeddings = [_new_embedding(config, one, extendable, vectors) for one, vectors in zip(used, stored, strict=True)]
    extendable.add_embeddings({e.placeholder: e.rows for e in embeddings})
    return [
        _with_outputs(embedding, config, extendable, vectors) if settings.is_output else embedding
        for embedding, settings, vectors in zip(embeddings, used, stored, strict=True)
    ]


def embedding_units(config: Config, embeddings: Sequence[Embedding]) -> list[TrainGroup]:
    """Return a training unit for each embedding that is trained, and enable gradients on its parameters.

    An adapter that is attached to a text encoder has disabled the gradients of all other weights in it.
    """
    rates, factor = embedding_rates(config), rate_factor_of(config)
    for embedding in embeddings:
        for name, parameter in embedding.parameters.items():
            parameter.requires_grad_(name in embedding.trained)
    return [
        TrainGroup(
            embedding.unit,
            {name: p for name, p in embedding.parameters.items() if name in embedding.trained},
            rates[embedding.placeholder] * factor,
            label=f"Embedding {embedding.placeholder}",
            stop_after=settings.stop_after,
            is_in_every_batch=False,
            fixed=partial(_untrained_rows, embedding),
        )
        for embedding, settings in zip(embeddings, embeddings_in_use(config), strict=True)
        if embedding.trained
    ]


def _untrained_rows(embedding: Embedding) -> dict[str, torch.Tensor]:
    """Return the rows of an embedding for encoders that it is not trained on, by full name."""
    return {name: rows.detach() for name, rows in embedding.parameters.items() if name not in embedding.trained}


def kept_norms(config: Config, embeddings: Sequence[Embedding], groups: Sequence[TrainGroup]) -> RowNorms | None:
    """Return the norms of embeddings to restore after each step; None if the config does not preserve them."""
    if not config.embeddings.preserve_norm:
        return None
    norms = {f"{e.unit}.{part}": norm for e in embeddings for part, norm in e.norms.items()}
    units = {e.unit for e in embeddings}
    return RowNorms([g for g in groups if g.name in units], norms)


def fixed_embeddings_identity(embeddings: Sequence[Embedding]) -> str:
    """Return the part of the text encoders' identity that untrained embeddings add; empty without any."""
    digest = hashlib.blake2b(digest_size=16)
    fixed = [e for e in embeddings if not e.trained]
    for embedding in fixed:
        digest.update(embedding.placeholder.lower().encode())
        for name, rows_ND in sorted(embedding.parameters.items()):
            digest.update(f"{name.rpartition('.')[2]} {tuple(rows_ND.shape)}".encode())
            digest.update(rows_ND.detach().float().contiguous().numpy().tobytes())
    return f"words {digest.hexdigest()}" if fixed else ""


def _new_embedding(
    config: Config, settings: EmbeddingSettings, family: FamilyWithEmbeddings, stored: Mapping[str, torch.Tensor]
) -> Embedding:
    """Return an embedding with its first rows, read from its file or made from its initial text."""
    encoders = {n: family.parts[n].module for n in family.spec.text.embedding_tensors}
    vocabularies = {n: _vocabulary(encoder) for n, encoder in encoders.items()}
    dtype = dtype_of(config.embeddings.dtype)
    trained = trained_encoders(config) if settings.train and not settings.is_output else ()
    key, rows = key_of_embedding(settings), {}
    for name, vocabulary_VD in vocabularies.items():
        first_ND = stored.get(name)
        if first_ND is None:
            ids = family.token_ids(name, settings.initial_text)
            present = next(iter(stored.values()), None)  # of another encoder
            first_ND = start_rows(
                vocabulary_VD,
                ids,
                count=len(present) if present is not None else settings.token_count or max(1, len(ids)),
                filler=family.token_ids(name, "*")[0],
                how=settings.start,
                seed=derive_seed(config.general.seed, f"embedding {key} {name}"),
            )
        rows[name] = nn.Parameter(first_ND.to(dtype), requires_grad=name in trained)
    norms = {n: typical_norm(v) for n, v in vocabularies.items()}
    embedding = Embedding(settings.placeholder, key, rows, {}, frozenset(), norms)
    return replace(embedding, trained=frozenset(f"{embedding.unit}.{n}" for n in trained))


def _with_outputs(
    embedding: Embedding, config: Config, family: FamilyWithEmbeddings, stored: Mapping[str, torch.Tensor]
) -> Embedding:
    """Return an output embedding with its rows at the encoders' output: from its file, or the present output."""
    dtype = dtype_of(config.embeddings.dtype)
    settings = next(e for e in embeddings_in_use(config) if key_of_embedding(e) == embedding.key)
    trained = trained_encoders(config) if settings.train else ()
    outputs = {}
    for name, rows in embedding.rows.items():
        first_ND = stored.get(f"{name}{OUTPUT_SUFFIX}")
        if first_ND is None or len(first_ND) != len(rows):
            first_ND = family.embedding_states(name, embedding.placeholder)
        outputs[name] = nn.Parameter(first_ND.to(dtype), requires_grad=name in trained)
        family.add_outputs(name, embedding.placeholder, outputs[name])
    names = frozenset(f"{embedding.unit}.{name}.output" for name in trained)
    return replace(embedding, outputs=outputs, trained=names)


def _vocabulary(encoder: nn.Module) -> torch.Tensor:
    weight: torch.Tensor = encoder.get_input_embeddings().weight  # type: ignore[operator]  # transformers' models
    return weight


def _read_vectors(
    settings: EmbeddingSettings, family: FamilyWithEmbeddings, copies: Path | None
) -> dict[str, torch.Tensor]:
    """Return the vectors of the file that an embedding starts from, as `read_embedding` does; none for a new one."""
    if not settings.file.strip():
        return {}
    copy = None if copies is None else copies / f"{_file_stem(key_of_embedding(settings))}.safetensors"
    if copy is not None and copy.exists():
        return read_safetensors(copy)[0]
    tensors = family.spec.text.embedding_tensors
    widths = {name: _vocabulary(family.parts[name].module).shape[1] for name in tensors}
    vectors = read_embedding(from_root(settings.file.strip()), tensors, widths)
    if copy is not None:
        write_safetensors(copy, vectors, {})
    return vectors


def _file_stem(key: str) -> str:
    """Return a key as the name of a file; a placeholder may have any characters."""
    return hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
