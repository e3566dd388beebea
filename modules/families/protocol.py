"""The protocol of a model family, used by training, validation, sampling and every method.

Only a family calls the forward pass of a part. `predict` is the only forward pass of the denoiser: it needs no device
argument, since all its inputs are on the training device already.

Shapes: B batch, C H W of latents, P H W of images in pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Generic, Literal, Protocol, TypeVar

import torch
from torch import nn

from modules.data.conditioning import Conditioning, SizeConditioning
from modules.data.inputs import NO_INPUTS
from modules.data.tiles import VAE_TILES, Tiling
from modules.diffusion.latents import LatentNorm
from modules.diffusion.process import NoiseProcess
from modules.families.lora_naming import LoraNaming
from modules.families.settings import FamilySettings
from modules.families.spec import FamilySpec, PartSpec
from modules.formats.hub_snapshot import OnBytes
from modules.memory.compiled_blocks import Compilation
from modules.settings.shared_types import CheckpointMode
from modules.system.devices import Device
from modules.system.secrets import HubAccess

Settings = TypeVar("Settings", bound=FamilySettings, covariant=True)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a loaded model, and which of its layers the denoising loss can reach."""

    spec: PartSpec
    module: nn.Module
    reaches: Callable[[str], bool]
    """Whether a gradient can reach the module of this dotted name inside the part."""


@dataclass(frozen=True, slots=True)
class PartMemory:
    """How a part's forward pass saves memory; see `create_checkpointed_forward`.

    `resident` names the parameters, as the part names them, that are never offloaded. `compilation` compiles
    its blocks. `chosen_blocks` are those that the mode "auto" checkpoints.
    """

    mode: CheckpointMode = "off"
    offload_activations: bool = False
    offload_fraction: float = 0.0
    resident: frozenset[str] = frozenset()
    compilation: Compilation | None = None
    chosen_blocks: frozenset[str] = frozenset()


@dataclass(frozen=True, eq=False)
class Posterior:
    """The normal distribution of the latents of images, as the VAE encodes them: float32, (B, C, H, W).

    `norm` turns them into the normalised latents that the rest of the program uses.
    """

    means_BCHW: torch.Tensor
    log_variances_BCHW: torch.Tensor
    norm: LatentNorm

    def latents(self, noise_BCHW: torch.Tensor | None = None) -> torch.Tensor:
        """Return the latents of the means, or of values drawn with standard normal noise."""
        if noise_BCHW is None:
            return self.norm.normalize(self.means_BCHW)
        return self.norm.normalize(self.means_BCHW + (0.5 * self.log_variances_BCHW).exp() * noise_BCHW)


StaysPacked = Callable[[str, str, Literal["gguf", "float8"]], bool]
"""Whether a layer keeps its weight as a file has it: the part, the layer, and how the file has packed it."""


def never_packed(part: str, layer: str, packed_in: Literal["gguf", "float8"]) -> bool:
    """Return False: no layer keeps its packed weight."""
    return False


LayersReadLater = Mapping[str, Callable[[str], bool]]
"""Whether the weight of a linear layer is read when it is quantized (`UnreadLinear`), by part."""
NONE_LATER: LayersReadLater = MappingProxyType({})


def read_with_part(layer: str) -> bool:
    """Return False: the weight of a layer is read together with its part, not later."""
    return False


@dataclass(frozen=True)
class LoadRequest(Generic[Settings]):
    """A base model to load, with the settings of its family.

    `base_model` is a single file, a diffusers folder or a repository, `dtypes` the dtype of each part (float32 for
    others). `part_files` names the files of parts in place of the model's own; `stays_packed` are the layers that keep
    the weights of such a file as they are stored, `read_later` those whose weights are read when they are quantized.
    Of the parts in `without_weights` only the config is read: they are on the meta device. The optional parts in
    `left_out` are not loaded, as if the model had none. `fallback_dtype` is the dtype of a VAE that overflows in
    float16. With `may_be_distilled`, the file of the denoiser may be of a distilled model that lacks some weights of
    the base model or has further ones (`DistilledSpec.lacks`, `adds`). `variant` is the one that is wanted where the
    weights do not show it (`FamilySpec.by_inputs_alone`). `hub` has the token for a download, and `on_bytes(done,
    total)` reports its progress.
    """

    base_model: str
    settings: Settings
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)
    part_files: Mapping[str, str] = field(default_factory=dict)
    stays_packed: StaysPacked = never_packed
    read_later: LayersReadLater = field(default_factory=dict)
    without_weights: Collection[str] = ()
    left_out: Collection[str] = ()
    fallback_dtype: torch.dtype = torch.float32
    may_be_distilled: bool = False
    variant: str = ""
    offline: bool = False
    hub_cache_dir: str = ""
    hub: HubAccess | None = None
    on_bytes: OnBytes | None = None

    def dtype_of(self, part: str) -> torch.dtype:
        """Return the dtype in which a part is loaded."""
        return self.dtypes.get(part, torch.float32)


class ModelFamily(Protocol):
    """A loaded model of some family."""

    @property
    def spec(self) -> FamilySpec: ...

    @property
    def process(self) -> NoiseProcess: ...

    @property
    def parts(self) -> Mapping[str, Part]: ...

    def put_part(self, name: str, module: nn.Module) -> None:
        """Put a part that was read later in the place of the one without weights, before `set_memory`."""
        ...

    @property
    def lora_naming(self) -> LoraNaming: ...

    @property
    def variant(self) -> str:
        """The model variant (`model.variant`): by the input channels of the denoiser, or the requested one."""
        ...

    def set_memory(self, memory: Mapping[str, PartMemory], *, train_device: Device, temp_device: Device) -> None:
        """Set up the checkpointed forward of every part."""
        ...

    def encode_images(self, images_B3PP: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the latents of images in [-1, 1], (B, C, H, W): the VAE's mean, normalised.

        With a generator they are drawn from the VAE's distribution instead, as diffusers' pipelines draw them.
        """
        ...

    def posterior(self, images_B3PP: torch.Tensor) -> Posterior:
        """Return the distribution of the latents of images in [-1, 1], with gradients."""
        ...

    def decode(
        self, latents_BCHW: torch.Tensor, tiling: Tiling = VAE_TILES, prompts: Conditioning | None = None
    ) -> torch.Tensor:
        """Return the images of latents, float32 in [-1, 1], (B, 3, P, P). With gradients there are no tiles.

        `prompts` is the conditioning of their prompts, after the conditioning of negative prompts if there are any: few
        decoders read it, and none needs it.
        """
        ...

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> Conditioning:
        """Return the conditioning of prompts, padded to the longest of them and of those in `padded_like`."""
        ...

    def encode_guided(self, negative: str, prompt: str) -> Conditioning:
        """Return the conditioning of a negative prompt and of a prompt, in this order, for a guided sample."""
        ...

    def with_size_conditioning(
        self, conditioning: Conditioning, size_conditionings: Sequence[SizeConditioning]
    ) -> Conditioning:
        """Return the conditioning with the sizes and crops of its images, where the model has size conditioning."""
        ...

    def conditioning_from(self, tensors: Mapping[str, torch.Tensor]) -> Conditioning:
        """Return the conditioning from the tensors of `Conditioning.tensors`."""
        ...

    def with_empty_prompts(
        self, conditioning: Conditioning, empty_for: Sequence[Collection[int]], empty: Conditioning
    ) -> Conditioning:
        """Return the conditioning with the empty prompt's for some text encoders of each prompt, by their index.

        `empty` is the conditioning of the empty prompt alone, as long as the others.
        """
        ...

    def join(self, conditionings: Sequence[Conditioning], empty: Conditioning) -> Conditioning:
        """Join several conditionings into one; shorter ones are padded with the empty prompt's conditioning."""
        ...

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the denoiser's output, (B, C, H, W).

        `inputs` are the further inputs of a model variant by name (`FamilySpec.inputs`): for an inpainting model the
        mask (B, 1, H, W) and the latents of the conditioning image. Other models get none.
        """
        ...

    @property
    def folder(self) -> Path | None:
        """The folder that the model was read from, whose tokenizers a saved model gets; None for a single file."""
        ...

    def scheduler_config(self) -> Mapping[str, Any]:
        """Return the config from which diffusers' schedulers are made for this model."""
        ...

    def image_identity(self) -> str:
        """Return everything but the VAE's weights that affects how an image is encoded, for cache keys."""
        ...

    def text_identity(self) -> str:
        """Return everything but the encoders' weights that affects how a prompt is encoded, for cache keys."""
        ...

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without start and end."""
        ...


class FamilyWithEmbeddings(ModelFamily, Protocol):
    """A family whose text encoders can get embeddings (`TextSpec.embedding_tensors`)."""

    def token_ids(self, part: str, text: str) -> list[int]:
        """Return the ids of a text's tokens for one of the text encoders."""
        ...

    def add_embeddings(self, rows: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """Add embeddings: new rows (N, D) by placeholder and text encoder. All in one call, before the first prompt."""
        ...

    def embedding_states(self, part: str, placeholder: str) -> torch.Tensor:
        """Return a text encoder's states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        ...

    def add_outputs(self, part: str, placeholder: str, rows_ND: nn.Parameter) -> None:
        """Replace a text encoder's states at the places of an embedding by rows (N, D)."""
        ...


class FamilyThatSees(ModelFamily, Protocol):
    """A family whose text encoder reads captions together with reference images (`FamilySpec.caption_images`)."""

    def encode_with_images(self, prompts: Sequence[str], images: Sequence[torch.Tensor]) -> Conditioning:
        """Return the conditioning of prompts that are all read together with the same images.

        The images are (3, P, P) in [-1, 1], float32 on the CPU, in one of the sizes of `CaptionImages`.
        """
        ...
