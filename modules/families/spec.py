"""The torch-free facts about a model family that the window, preflight and the data pipeline need."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from modules.diffusion.process_spec import DDPM, ProcessSpec
from modules.families.settings import FamilySettings
from modules.formats.adapter_targets import AdapterTargets
from modules.settings.layer_filter import LayerPresets

Role = Literal["denoiser", "text_encoder", "vae"]
Guidance = Literal["classifier_free", "embedded", "none"]

BASE_VARIANT = "text_to_image"
"""The model variant that is conditioned on nothing besides the prompt."""

VARIANT_LABELS: Mapping[str, str] = {BASE_VARIANT: "Base", "inpainting": "Inpainting", "depth": "Depth"}
"""The model variants of all families (`model.variant`)."""


@dataclass(frozen=True, slots=True)
class VaeFile:
    """How files contain a VAE alone, in the original layout and in diffusers'.

    `slots` names the function from a config to the slots of its tensors in the original layout
    (`modules.families.parts.single_file.slots`), as "module:function". `original` and `diffusers` begin names that
    every file of the layout has, without a prefix; `original_latents` and `diffusers_latents` are the weights of the
    layer whose input channels are the latents.
    """

    slots: str
    original: tuple[str, ...]
    diffusers: tuple[str, ...]
    original_latents: str = "decoder.conv_in.weight"
    diffusers_latents: str = "decoder.conv_in.weight"


@dataclass(frozen=True, slots=True)
class LargerModel:
    """The model that contains a part, and whose folders and files may stand for those of the part alone.

    They have the part's config under `config_key` or, in older files, among their own values; its tensors with a prefix
    that the pattern `prefix` matches, or with none; and those of other parts, whose names `others` matches.
    """

    config_key: str
    prefix: str
    others: str

    def own_name(self, name: str) -> str:
        """Return the part's own name of a tensor in a file; empty for one of another part."""
        return "" if re.search(self.others, name) else re.sub(self.prefix, "", name)


@dataclass(frozen=True, slots=True)
class ModelClass:
    """The diffusers or transformers class of a part, as "module:Class", and the facts about its layers.

    Blocks, each a class as "module:Class", are checkpointed, offloaded, compiled and sharded one by one. The
    transformer blocks alone are what the checkpointing of transformer blocks recomputes.

    `attention` names the function that puts an implementation into the attention layers, as "module:name"
    (`modules.families.parts.attention_processor`); without it the class keeps its own. `layers` are the presets of
    layer filters, by name; `never_quantized` the steps of dotted names whose layers keep their weights, or with "^"
    before it a whole name.

    `usual_layers` is the preset that other trainers of the model have by default: its blocks, if empty and there is
    such a preset.

    `masks_padding`: its attention leaves out the padding of prompts that are shorter than others of their batch.

    `passes` names the function that returns the passes of a module of the class, "forward", or "encode" and "decode",
    with their inputs (`modules.families.parts.traced_passes`): the memory estimate traces them.

    `file_key` names the function from the key of a tensor in the module to the one in files, empty for a tensor that
    files do not have, as "module:function"; without it both are the same.

    `vae_file` states how files contain it alone, for a VAE. `library` is the package whose names configs and folders
    have, if the class is not in it but one of our own that derives from the package's.

    `inside` is the larger model that contains it in published folders and files; ours contain it alone.

    `fill_buffers` names the function that makes the buffers which files do not have, from a module whose buffers are on
    the meta device, as "module:function".

    `identity_if_missing` are the square matrices that files may lack: each is the identity then.

    `overflows_in_float16`: activations of the published weights do, so that no run may compute in it.

    `is_large`: a text encoder about as large as a denoiser. A run that caches its outputs has it in memory only while
    it encodes.

    `work` is the computation for each weight relative to a UNet of SD XL, for comparing step times: 3.5 for a
    transformer over all tokens of patches of 2 x 2 (two operations for each of 4,096 tokens at 1024 px, against 2,335).
    """

    reference: str
    transformer_blocks: tuple[str, ...]
    passes: str
    other_blocks: tuple[str, ...] = ()
    attention: str = ""
    layers: LayerPresets = field(default_factory=dict, hash=False)
    usual_layers: str = ""
    masks_padding: bool = False
    never_quantized: frozenset[str] = frozenset()
    file_key: str = ""
    vae_file: VaeFile | None = None
    library: str = ""
    inside: LargerModel | None = None
    fill_buffers: str = ""
    identity_if_missing: frozenset[str] = frozenset()
    overflows_in_float16: bool = False
    is_large: bool = False
    work: float = 1.0

    @property
    def layers_elsewhere(self) -> str:
        """The preset of layers that other trainers of the model have by default."""
        return self.usual_layers or ("blocks" if "blocks" in self.layers else "attention_mlp")

    def own_config(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config of the class from one in a file, which may be the config of the larger model."""
        own = config.get(self.inside.config_key) if self.inside is not None and isinstance(config, Mapping) else None
        return own if isinstance(own, Mapping) else config


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One part of a model: its name in configs and files, its label, its role, and its class.

    `most_tokens` are the tokens that a text encoder reads at once, if they are fewer than the family's. `optional`:
    models may lack it, and a run may leave it out. `tokenizer` is the folder of its tokenizer, if that is not the usual
    one. One that reads the states of another text encoder names it as `reads`: captions are dropped for both at once.
    """

    name: str
    label: str
    role: Role
    model: ModelClass
    trainable: bool = True
    most_tokens: int | None = None
    optional: bool = False
    tokenizer: str = ""
    reads: str = ""

    @property
    def tokenizer_folder(self) -> str:
        """The folder of a text encoder's tokenizer in diffusers' pipelines."""
        return self.tokenizer or self.name.replace("text_encoder", "tokenizer")

    @property
    def model_class(self) -> str:
        """The class as "module:Class"."""
        return self.model.reference

    @property
    def library(self) -> str:
        """The package of the class, "diffusers" or "transformers", which determines the names of the files."""
        return self.model.library or self.model_class.partition(".")[0]

    @property
    def class_name(self) -> str:
        """The name of the class."""
        return self.model_class.rpartition(":")[2]


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """The latents of a family: their channels, and the side in pixels of the square that each covers.

    `packed` is the side of the square of latents whose values are the input channels of the denoiser's first layer.
    `overflows_in_float16`: the published VAE does, so that it must run in another dtype.
    """

    channels: int
    factor: int
    packed: int = 1
    overflows_in_float16: bool = False

    def in_channels(self, further: int = 0) -> int:
        """Return the input channels of a denoiser that gets `further` channels besides the latents."""
        return (self.channels + further) * self.packed**2

    def shape(self, width_px: int, height_px: int) -> tuple[int, int, int]:
        """Return the shape (C, H, W) of an image's latents."""
        return self.channels, height_px // self.factor, width_px // self.factor


@dataclass(frozen=True, slots=True)
class TextSpec:
    """How a family reads prompts.

    `chunk_tokens` are the tokens that its encoders read at once. The rest of a longer prompt is read in further chunks,
    or not at all if the family `truncates`. `tokenizer` names the function that loads the tokenizer which counts
    tokens; `is_lower_case`: all text is read in lower case, so that capitals of captions change nothing.
    `ships_vocabulary`: the program contains one for models without a tokenizer; without it the model must have its own.

    `usual_tokens` are those of which the memory estimate counts on, if they are fewer than the most that are read.

    `widths` are the keys of configs that must agree, by text encoder: the one in its own config that holds the width of
    its states, and the denoiser's. The denoiser's is `states_read` times as large: so many states of each token are
    read side by side. `counted_by` is the text encoder whose tokenizer that is, the first one if empty.

    `embedding_tensors` are the names of an embedding's tensors in files, by the text encoder whose vectors they hold; a
    family without any does not support embeddings.
    """

    chunk_tokens: int
    tokenizer: str
    truncates: bool = False
    is_lower_case: bool = False
    ships_vocabulary: bool = True
    usual_tokens: int = 0
    widths: Mapping[str, tuple[str, str]] = field(default_factory=dict, hash=False)
    states_read: int = 1
    counted_by: str = ""
    embedding_tensors: Mapping[str, str] = field(default_factory=dict, hash=False)


_FEW_STEP_SCHEDULERS = ("LCMScheduler", "TCDScheduler", "FlowMatchLCMScheduler", "FlowMapEulerDiscreteScheduler")


@dataclass(frozen=True, slots=True)
class DistilledSpec:
    """The checkpoints of a family that were distilled to sample in few steps or without guidance.

    One is recognized by a word in the name of its file or repository, by `config_key`, a key in the config of the
    denoiser that only theirs set or, if there is a `config_value`, set to that, by `index_key`, an entry of the index
    that is true, or by a scheduler of few-step models.
    With one of `undone_words` in its name the distillation was undone. `advice` is shown to the user. They are sampled
    in about `steps` steps, with a guidance scale of at most `guidance`. They may lack weights whose names begin with
    one of `lacks`, which have no effect in other models of the family if they are 0. `is_refused`: training one
    without a training adapter is an error, as its results are useless.
    """

    words: tuple[str, ...]
    advice: str
    config_key: str = ""
    config_value: object = None
    index_key: str = ""
    undone_words: tuple[str, ...] = ()
    steps: int = 8
    guidance: float = 1.0
    lacks: tuple[str, ...] = ()
    is_refused: bool = False

    def is_named(self, base_model: str) -> bool:
        """Return whether a base model, a path or a repository, is named like a distilled one."""
        name = _file_name(base_model)
        return not self.is_undone(base_model) and any(
            re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", name) for word in self.words
        )

    def is_undone(self, base_model: str) -> bool:
        """Return whether a base model is named like one whose distillation was undone."""
        return any(word in _file_name(base_model) for word in self.undone_words)

    def evidence(
        self,
        base_model: str,
        config: Mapping[str, Any],
        scheduler: Mapping[str, Any],
        index: Mapping[str, Any] | None = None,
    ) -> str:
        """Return the sign by which a model is known to be distilled, such as "its name"; empty without one.

        `config` is the config of its denoiser, `scheduler` the config of its scheduler, `index` its folder's index; all
        may be empty.
        """
        if index is not None and self.index_key and self.index_key in index:  # in a base model's index it is false
            return f"{self.index_key} in its model_index.json" if index[self.index_key] else ""
        if self.is_undone(base_model):
            return ""
        if self.is_named(base_model):
            return "its name"
        value = config.get(self.config_key) if self.config_key else None
        if value is not None and self.config_value in (None, value):
            return f"{self.config_key} in its config"
        by = _few_step_scheduler(scheduler)
        return f"{by} in its scheduler config" if by else ""


def _few_step_scheduler(scheduler: Mapping[str, Any]) -> str:
    """Return the setting of a scheduler config that only few-step models have; empty without one."""
    if (name := str(scheduler.get("_class_name"))) in _FEW_STEP_SCHEDULERS:
        return name
    if scheduler.get("stochastic_sampling"):
        return "stochastic_sampling"
    lowest, highest = scheduler.get("base_shift"), scheduler.get("max_shift")
    # A shift by size that is the same for all sizes (Qwen-Image-Lightning, Krea 2 Turbo).
    is_pinned = scheduler.get("use_dynamic_shifting") and lowest is not None and lowest == highest
    return "a fixed dynamic shift" if is_pinned else ""


def _file_name(base_model: str) -> str:
    return re.split(r"[\\/]", base_model.rstrip("\\/"))[-1].lower()


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """The facts about a family that are known before any weight is read.

    `settings` is the class of the family's own settings, `model.family`. `factory` names the function that loads a
    `LoadRequest`, as "module:function"; it is imported inside the training thread. Widths and heights must be multiples
    of `size_step_px`; `pipelines` are the classes in the index of this family's diffusers folders.

    `files` names the record of its files (`FamilyFiles`) as "module:name", torch-free.

    `variants` are the model variants (`model.variant`) besides the base model, each with the number of channels that
    its denoiser gets after the noisy latents. `inputs` are the names of the further inputs (`modules.data.inputs`) of
    those that have any, in the order in which the model gets them.

    `process` is the noise process: DDPM, or flow matching with the family's convention. `guidance` is how samples
    follow a guidance scale: by a second prediction for the negative prompt, by an input of the model, or not at all.
    `sample_guidance` is the usual guidance scale of samples of its models that are not distilled. `distilled` are the
    family's checkpoints that training directly would damage.

    `text_without` is how prompts are read without an optional text encoder, by its name, if that changes.

    `released` is the year and month of the first model of its generation, as "2024-08": the newest families are offered
    first.

    `guided_norm` is the side of the squares of latents in which a prediction with a guidance scale gets the norm of the
    one for the prompt; 0: nowhere.

    `ai_toolkit` are ai-toolkit's names of the family's models (`arch`), `kohya` those of sd-scripts and musubi-tuner
    (`model_type`, `ss_base_model_version`, the end of the network's module); SD and SDXL are flags there.
    """

    name: str
    label: str
    settings: type[FamilySettings]
    parts: tuple[PartSpec, ...]
    factory: str
    default_resolution_px: int
    size_step_px: int
    latents: LatentSpec
    text: TextSpec
    files: str
    pipelines: tuple[str, ...] = ()
    variants: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    process: ProcessSpec = DDPM
    guidance: Guidance = "classifier_free"
    sample_guidance: float = 7.5

    guided_norm: int = 0
    distilled: DistilledSpec | None = None
    text_without: Mapping[str, TextSpec] = field(default_factory=dict, hash=False)
    released: str = ""
    ai_toolkit: tuple[str, ...] = ()
    kohya: tuple[str, ...] = ()

    @property
    def trainable_parts(self) -> tuple[PartSpec, ...]:
        """The parts that a run may train, in the order of the window."""
        return tuple(p for p in self.parts if p.trainable)

    @property
    def denoiser(self) -> PartSpec:
        """The part that is trained to denoise."""
        return next(p for p in self.parts if p.role == "denoiser")

    def without(self, names: Collection[str]) -> FamilySpec:
        """Return the facts of the family for a model that lacks some of its optional parts."""
        absent = {p.name for p in self.parts if p.optional and p.name in names}
        if not absent:
            return self
        text = next((text for name, text in self.text_without.items() if name in absent), self.text)
        text = replace(
            text,
            widths={n: keys for n, keys in text.widths.items() if n not in absent},
            embedding_tensors={n: tensor for n, tensor in text.embedding_tensors.items() if n not in absent},
        )
        return replace(self, parts=tuple(p for p in self.parts if p.name not in absent), text=text)

    def doubles_batch(self, guidance: float) -> bool:
        """Return whether a guidance scale, above 1, needs a second prediction in each denoising step."""
        return self.guidance == "classifier_free" and guidance > 1

    def names_of(self, role: Role) -> tuple[str, ...]:
        """Return the names of the parts with a role; a family need not have a part of every role."""
        return tuple(p.name for p in self.parts if p.role == role)

    @property
    def tokenizers(self) -> Mapping[str, str]:
        """The folders of the tokenizers by text encoder."""
        return {p.name: p.tokenizer_folder for p in self.parts if p.role == "text_encoder"}


def variant_of(spec: FamilySpec, in_channels: int) -> str:
    """Return the variant of a model by the input channels of its denoiser; empty where the family has none such."""
    if in_channels == spec.latents.in_channels():
        return BASE_VARIANT
    return next(
        (name for name, further in spec.variants.items() if spec.latents.in_channels(further) == in_channels), ""
    )


@dataclass(frozen=True, slots=True)
class LoraNaming:
    """The names of a loaded model and its layers in LoRA files; the functions take a part and a dotted path.

    `model` is its name among the family's published models, `base_version` kohya's name, `architecture` ModelSpec's;
    `prediction` is its prediction type. `targets` are all its layers by every name that files of any form have for
    them, paths of text layers with "text_model."; `own_configs` are the configs of the parts as JSON, where the model
    has a different size than the published one and files must include them.
    """

    kohya_name: Callable[[str, str], str]
    peft_name: Callable[[str, str], str]
    comfy_name: Callable[[str, str], str]
    base_version: str
    architecture: str
    model: str
    targets: AdapterTargets
    prediction: str = "epsilon"
    own_configs: str = ""
    variant: str = ""
    """That of the model's files (`FileKind.variant`); empty for the base model."""
    is_v2: bool = False
    """kohya's `v2`: OpenCLIP's is the only text encoder."""
