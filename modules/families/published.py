"""The records that describe the files of a family; its `files` module fills them in."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from modules.families.kinds.file_kind import FileKind
from modules.families.parts.single_file.record import DenoiserFile, SingleFile
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.program_table import COMFY_OF_FLOW, Answers, Row

Configs = Mapping[str, Mapping[str, Any]]
TargetsOf = Callable[[Configs], AdapterTargets]
"""A model's layers that adapter files can change, from the configs of its parts."""

ALL_PROGRAMS = ("ComfyUI", "A1111", "Forge", "diffusers")


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """One model of a family as it was published.

    `architecture`, `variant_architectures` and `implementation` are ModelSpec's; `kohya_version` is kohya's where it is
    not `name`, `comfy_encoders` are ComfyUI's names of the text encoders. The configs of its parts are in the folder
    `configs/<name>` of its family. `repository` is the one at Hugging Face with its tokenizers, for a family whose
    tokenizers are not in the program. `copied` are the folders of further components without weights, which folders
    have from the model's own. `pipelines` are diffusers' classes by variant; `blocks` is the class of the blocks of
    a modular pipeline, whose folders have another index. `index` are the entries of a folder's index besides the
    parts, `variant_index` further ones by variant. `text_width` is the width of the text states that its
    cross-attention reads, `embedding_width` the width of an embedding's vectors, `embedding_tensors` the names of
    its tensors where they have names. `prediction_note(program, file)` returns what the user must do so that a
    program uses the right prediction type. `without_embeddings` are programs that load no embeddings of the model,
    each with the reason. `programs` are the programs that support such models, `naming_rows` their answers to names
    of layers in adapter files, `extra_rows` those to what else is in such a file (`EXTRAS`), and `versions` the
    versions that these answers are about where they are not those in `program_table.PROGRAMS`: by default the revision
    of ComfyUI that has the flow models. `weight_bytes` are those of a weight in the main files of its repository, which
    are downloaded.
    """

    name: str
    label: str
    family: str
    architecture: str
    adapter_targets: TargetsOf
    kohya_version: str = ""
    comfy_encoders: Mapping[str, str] = field(default_factory=dict)
    repository: str = ""
    implementation: str = ""
    variant_architectures: Mapping[str, str] = field(default_factory=dict)
    pipelines: Mapping[str, str] = field(default_factory=dict)
    blocks: str = ""
    index: Mapping[str, Any] = field(default_factory=dict)
    copied: tuple[str, ...] = ()
    variant_index: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    single_file: SingleFile | None = None
    is_v2: bool = False
    text_width: int = 0
    embedding_width: int = 0
    embedding_tensors: tuple[str, ...] = ()
    prediction_note: Callable[[str, FileKind], str] = lambda program, kind: ""
    without_embeddings: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] = ("ComfyUI", "diffusers")
    naming_rows: Mapping[str, Row] = field(default_factory=dict)
    extra_rows: Mapping[str, Answers] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=lambda: {"ComfyUI": COMFY_OF_FLOW})
    weight_bytes: int = 2

    def shipped_configs(self) -> dict[str, dict[str, Any]]:
        """Return the configs of its parts and of its scheduler, by part; empty if none ship."""
        package = find_spec(f"{__package__}.{self.family}")
        if package is None or package.origin is None:
            return {}
        configs = _read_configs(Path(package.origin).parent / "configs" / self.name)
        return {part: dict(config) for part, config in configs.items()}

    @property
    def kohya_name(self) -> str:
        """kohya's name of the model in the metadata of adapter files (`ss_base_model_version`)."""
        return self.kohya_version or self.name

    def architecture_of(self, variant: str = "") -> str:
        """Return ModelSpec's id of the model, or of one of its variants."""
        return self.variant_architectures.get(variant, self.architecture)


@dataclass(frozen=True, slots=True)
class FolderFacts:
    """The facts that identify the model of a diffusers folder: the index, the denoiser's config, the prediction."""

    index: Mapping[str, Any]
    denoiser: Mapping[str, Any]
    prediction: str


@dataclass(frozen=True, slots=True)
class FamilyFiles:
    """How the files of a family are detected.

    `pipelines` maps the classes that a folder's index may name to the variant; `folder_model` returns the published
    model of a folder. `checkpoint` detects a single-file model or a denoiser alone, and `denoiser_file` is how files
    contain the denoiser. Where the layers of a LoRA fit several models, the `lora_words` in its metadata decide, each
    paired with its model. `repository_model` returns the published model of a repository's name.
    """

    models: tuple[PublishedModel, ...]
    pipelines: Mapping[str, str]
    folder_model: Callable[[FolderFacts], str]
    checkpoint: Callable[[CheckpointHeader], FileKind | None] = lambda header: None
    denoiser_file: DenoiserFile | None = None
    lora_words: tuple[tuple[str, str], ...] = ()
    variants: Mapping[int, str] = field(default_factory=dict)
    """The variants by how many channels the denoiser's first layer reads."""
    repository_model: Callable[[str], str] = str
    variant_words: Mapping[str, str] = field(default_factory=dict)
    """The variants whose weights do not show them, by a word in the names of repositories and files."""
    named_configs: Mapping[str, Configs] = field(default_factory=dict)
    """Further settings of the configs of some repositories, by part, then by a word in the repository's name."""

    def variant_named(self, name: str) -> str:
        """Return the variant that the name of a repository or a file has a word for; empty if it has none."""
        return next((variant for word, variant in self.variant_words.items() if word in name.lower()), "")

    def configs_named(self, name: str) -> dict[str, dict[str, Any]]:
        """Return the configs of the published model with this repository name; empty if none ship."""
        model = self.repository_model(name)
        configs = next((m.shipped_configs() for m in self.models if m.name == model), {})
        for word, named in self.named_configs.items():
            if word in name.lower():
                configs = {part: {**config, **named.get(part, {})} for part, config in configs.items()}
        return configs

    def is_in_single_file(self, part: str) -> bool:
        """Return whether single files of the family's models contain a part; some contain the denoiser alone."""
        record = self.models[0].single_file
        return record is None or any(p.name == part for p in record.parts(self.models[0].shipped_configs()))

    @property
    def has_denoiser_alone(self) -> bool:
        """Whether single files of the family's models contain the denoiser without the other parts."""
        return self.denoiser_file is not None and not self.is_in_single_file("vae")


@cache
def _read_configs(folder: Path) -> dict[str, dict[str, Any]]:
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))}
