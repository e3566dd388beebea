"""The torch-free facts about a model family that the window, preflight and the data pipeline need."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from modules.diffusion.process_spec import DDPM, ProcessSpec
from modules.families.distilled import DistilledSpec
from modules.families.model_class import ModelClass
from modules.families.settings import FamilySettings

if TYPE_CHECKING:  # the window reads this file, and no adapter; only editing models have reference images
    from modules.data.buckets import LatentFactor
    from modules.data.references import CaptionImages, ReferenceSizes
    from modules.families.projected_guidance import ProjectedGuidance
    from modules.formats.adapter_forms import FileForm

Role = Literal["denoiser", "guidance", "text_encoder", "vae"]
"""The purpose of a part. "guidance" is a second denoiser, which is never trained: it predicts without a prompt for
guided samples."""
DENOISERS: tuple[Role, ...] = ("denoiser", "guidance")
"""The roles whose parts are in files like the denoiser's."""
Guidance = Literal["classifier_free", "embedded", "none"]
GuidedNorm = int | Literal["rows"]

BASE_VARIANT = "text_to_image"
"""The model variant that is conditioned on nothing besides the prompt."""

VARIANT_LABELS: Mapping[str, str] = {
    BASE_VARIANT: "Base",
    "inpainting": "Inpainting",
    "depth": "Depth",
    "edit": "Editing",
    "edit_one": "Editing, one reference",
}
"""The model variants of all families (`model.variant`)."""


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One part of a model: its name in configs and files, its label, its role, and its class.

    `most_tokens` is the number of tokens that a text encoder reads at once, if it is less than the family's.
    `optional`: models may lack the part, and a run may leave it out. `tokenizer` is the folder of its tokenizer if that
    is not the usual one. `reads` is the name of another text encoder whose states it reads: captions are dropped for
    both at once. `in_variants` are its classes in the variants whose models have another class.

    `published_in` are the repositories of a part that base models need not contain. It has a file of its own
    (`families/separate_parts.py`), or the family reads it from places in its settings. Estimates use the config next to
    its file, or the published one.
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
    published_in: tuple[str, ...] = ()
    in_variants: Mapping[str, ModelClass] = field(default_factory=dict, hash=False)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """The defaults of its settings that differ from those of other parts: a large text encoder is not trained."""
        return {"train": False} if self.role == "text_encoder" and self.model.is_large else {}

    @property
    def reads_file(self) -> bool:
        """Whether a file of its own can take the place of the base model's weights."""
        return self.role != "vae" or self.model.vae_file is not None

    @property
    def is_in_base_model(self) -> bool:
        """Whether base models, and so saved ones, may contain it; they lack a part that only its family reads."""
        return self.reads_file or not self.published_in

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


def encoding_of(num_frames: int) -> str:
    """Return the name of the VAE's pass that encodes clips with this number of frames, or images."""
    return f"encode_{num_frames}" if num_frames > 1 else "encode"


@dataclass(frozen=True, slots=True)
class LatentSpec:
    """The latents of a family: their channels, and the side in pixels of the square that each covers.

    In a clip, the first frame has latents of its own; after it, `frame_factor` frames share their latents. The VAE
    encodes at most `frames_at_once` frames in one piece.
    `factor` is a fraction where several latents cover the smallest possible square of whole pixels.
    `packed` is the side of the square of latents whose values are the input channels of the denoiser's first layer.
    `overflows_in_float16`: the published VAE does, so that it must run in another dtype.
    """

    channels: int
    factor: LatentFactor
    packed: int = 1
    overflows_in_float16: bool = False
    frame_factor: int = 1
    frames_at_once: int = 1

    def in_channels(self, further: int = 0) -> int:
        """Return the input channels of a denoiser that gets `further` channels besides the latents."""
        return (self.channels + further) * self.packed**2

    def shape(self, width_px: int, height_px: int, num_frames: int = 1) -> tuple[int, ...]:
        """Return the shape of an image's latents, (C, H, W), or of a clip's, (C, F, H, W)."""
        frames = (self.frames(num_frames),) if num_frames > 1 else ()
        return self.channels, *frames, height_px // self.factor, width_px // self.factor

    def frames(self, num_frames: int) -> int:
        """Return the number of frames in the latents of this number of frames."""
        return 1 + (num_frames - 1) // self.frame_factor

    def traced_frames(self, num_frames: int) -> int:
        """Return the frames of the traced pass (`encoding_of`) with the memory of encoding this number of frames."""
        whole = 1 + -(-(num_frames - 1) // self.frame_factor) * self.frame_factor
        return min(whole, self.frames_at_once)

    def px(self, num_latents: int) -> int:
        """Return the pixels that a row or column of this number of latents covers."""
        return int(num_latents * self.factor)


@dataclass(frozen=True, slots=True)
class TextSpec:
    """How a family reads prompts.

    `chunk_tokens` are the tokens that its encoders read at once. The rest of a longer prompt is read in further chunks,
    or not at all if the family `truncates`. `tokenizer` names the function that loads the tokenizer which counts
    tokens; `is_lower_case`: all text is read in lower case, so that capitals of captions change nothing.
    `ships_vocabulary`: the program contains one for models without a tokenizer; without it the model must have its own.

    `prompts_at_once` is the number of prompts of one chunk that a GPU encodes together: always as many, so that the
    states of a prompt depend on no other prompt. Families that encode each prompt by itself have 1.

    `usual_tokens` is the number of tokens that the memory estimate assumes, if it is lower than the most that are read.

    `widths` has, by text encoder, the keys with the width of its states in its own config and in the denoiser's. The
    denoiser's width is `states_read` times as large: that many states of each token are read side by side. `counted_by`
    is the text encoder whose tokenizer counts tokens, the first one if empty.

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
    prompts_at_once: int = 1


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """The facts about a family that are known before any weight is read.

    `settings` is the class of the family's own settings, `model.family`. The package that has it contains the family's
    code (`factory`, `files`). Widths and heights must be multiples of `size_step_px`.

    `variants` are the model variants (`model.variant`) besides the base model, each with the number of channels that
    its denoiser gets after the noisy latents. `inputs` are the names of the further inputs (`modules.data.inputs`) of
    those that have any, in the order in which the model gets them. A variant of `inputs` alone has the weights of the
    base model, and gets its inputs as further tokens. `references` are the sizes at which the pipeline of an editing
    model reads its reference images. `caption_images` is how its text encoder reads them together with each
    caption, by variant; other models read captions alone. `variant` is the variant that these facts are about, if
    they do not hold for all models (`of_variant`).

    `process` is the noise process: DDPM, or flow matching with the family's convention. `guidance` is how samples
    follow a guidance scale: by a second prediction for the negative prompt, by an input of the model, or not at all.
    `sample_guidance` is the usual guidance scale of samples of its models that are not distilled. `distilled` are the
    family's checkpoints that training directly would damage. `adapter_form` is the form of adapter files that most
    programs load completely.

    `text_without` is how prompts are read without an optional text encoder, by its name, if that changes.

    `released` is the year and month of the first model of its generation, as "2024-08": the newest families are offered
    first, but those after all others whose weights are licensed for research alone (`is_for_research`).

    `guided_norm` is the side of the squares of latents in which a prediction with a guidance scale gets the norm of the
    one for the prompt, or "rows" of each channel; 0: nowhere. `projected_guidance` returns how samples of a prompt are
    guided after their first steps; rollouts are guided as in these, since a step may be repeated.

    `ai_toolkit` are ai-toolkit's names of the family's models (`arch`), `kohya` those of sd-scripts and musubi-tuner
    (`model_type`, `ss_base_model_version`, the end of the network's module); SD and SDXL are flags there.
    """

    name: str
    label: str
    settings: type[FamilySettings]
    parts: tuple[PartSpec, ...]
    size_step_px: int
    latents: LatentSpec
    text: TextSpec
    default_resolution_px: int = 1024
    variants: Mapping[str, int] = field(default_factory=dict)
    inputs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    process: ProcessSpec = DDPM
    guidance: Guidance = "classifier_free"
    sample_guidance: float = 7.5
    guided_norm: GuidedNorm = 0
    projected_guidance: Callable[[str], ProjectedGuidance] | None = None
    distilled: DistilledSpec | None = None
    adapter_form: FileForm = "kohya"
    text_without: Mapping[str, TextSpec] = field(default_factory=dict, hash=False)
    released: str = ""
    is_for_research: bool = False
    ai_toolkit: tuple[str, ...] = ()
    kohya: tuple[str, ...] = ()
    references: ReferenceSizes | None = None
    caption_images: Mapping[str, CaptionImages] = field(default_factory=dict)
    variant: str = ""

    @property
    def factory(self) -> str:
        """The function that loads a `LoadRequest`, as "module:function"; it is imported inside the training thread."""
        return f"{self._package}.model:load"

    @property
    def files(self) -> str:
        """The record of its files (`FamilyFiles`), as "module:name"; torch-free."""
        return f"{self._package}.files:FILES"

    @property
    def _package(self) -> str:
        return self.settings.__module__.rpartition(".")[0]

    @property
    def trainable_parts(self) -> tuple[PartSpec, ...]:
        """The parts that a run may train, in the order of the window."""
        return tuple(p for p in self.parts if p.trainable)

    @property
    def denoiser(self) -> PartSpec:
        """The part that is trained to denoise."""
        return next(p for p in self.parts if p.role == "denoiser")

    @property
    def in_base_model(self) -> FamilySpec:
        """The facts of the family for its base models, which lack the parts that only the family reads."""
        return replace(self, parts=tuple(p for p in self.parts if p.is_in_base_model))

    def of_variant(self, variant: str) -> FamilySpec:
        """Return the facts of the family for the models of a variant, whose parts may be of other classes."""
        if not any(variant in p.in_variants for p in self.parts):
            return self
        parts = tuple(replace(p, model=p.in_variants.get(variant, p.model)) for p in self.parts)
        return replace(self, parts=parts, variant=variant)

    @property
    def seen_with_captions(self) -> CaptionImages | None:
        """How the text encoder reads reference images with a caption; None if it reads captions alone."""
        return self.caption_images.get(self.variant)

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

    def by_inputs_alone(self, variant: str) -> str:
        """Return the variant if its weights have the shapes of the base model's and do not show it, else ""."""
        return variant if variant in self.inputs and variant not in (BASE_VARIANT, *self.variants) else ""

    def doubles_batch(self, guidance: float) -> bool:
        """Return whether a guidance scale, above 1, needs a second prediction in each denoising step."""
        return self.guidance == "classifier_free" and guidance > 1

    @property
    def part_labels(self) -> dict[str, str]:
        """The labels of the parts by name."""
        return {p.name: p.label for p in self.parts}

    def names_of(self, role: Role) -> tuple[str, ...]:
        """Return the names of the parts with a role; a family need not have a part of every role."""
        return tuple(p.name for p in self.parts if p.role == role)

    @property
    def tokenizers(self) -> Mapping[str, str]:
        """The folders of the tokenizers by text encoder."""
        return {p.name: p.tokenizer_folder for p in self.parts if p.role == "text_encoder"}


def variant_of(spec: FamilySpec, in_channels: int) -> str:
    """Return the variant of a model by the input channels of its denoiser; empty if no variant has that number."""
    if in_channels == spec.latents.in_channels():
        return BASE_VARIANT
    return next(
        (name for name, further in spec.variants.items() if spec.latents.in_channels(further) == in_channels), ""
    )
