"""Loading Stable Cascade and running it: prior and CLIP of a base model, and the autoencoder from places of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from diffusers.pipelines.deprecated.wuerstchen.modeling_paella_vq_model import PaellaVQModel
from torch import nn

from modules.data.conditioning import Conditioning
from modules.data.inputs import NO_INPUTS
from modules.data.tiles import VAE_TILES, Tiling
from modules.diffusion.process import DDPMProcess
from modules.diffusion.schedule import cosine_cumulative_alphas
from modules.families.parts.clip_text import TextTower
from modules.families.parts.clip_tokens import load_clip_tokenizer
from modules.families.parts.conditioning import PooledConditioning
from modules.families.parts.files import ModelFiles
from modules.families.parts.lora_names import naming_of
from modules.families.parts.read_model import read_model
from modules.families.parts.single_file.checkpoint import empty_part
from modules.families.parts.text_model import TextModel
from modules.families.parts.token_rows import add_words, extended
from modules.families.protocol import LoadRequest
from modules.families.registry import published
from modules.families.stable_cascade.autoencoder import StableCascadeAutoencoder
from modules.families.stable_cascade.efficient_net import stages_of
from modules.families.stable_cascade.settings import OF_IMAGES, StableCascadeSettings
from modules.families.stable_cascade.spec import STABLE_CASCADE
from modules.families.stable_cascade.unet import StableCascadeUNet
from modules.formats.diffusers_folder import locate, read_part
from modules.formats.repository import MissingModelError
from modules.formats.safetensors_io import read_safetensors
from modules.system.errors import DarkroomError
from modules.system.paths import from_root

_TEXT = "text_encoder"


@dataclass(eq=False)
class StableCascade(TextModel[DDPMProcess, PooledConditioning]):
    """A prior, a CLIP, an autoencoder of three parts; implements `FamilyWithWords`."""

    text_class = PooledConditioning

    tower: TextTower

    def reaches(self, part: str, name: str) -> bool:
        """Return whether a denoising loss reaches a layer: all but the autoencoder's and that of an image."""
        return part != "vae" and not name.startswith(OF_IMAGES)

    def encode_prompts(self, prompts: Sequence[str], padded_like: Sequence[str] = ()) -> PooledConditioning:
        """Return the states of the first 77 tokens of prompts; all have as many, so `padded_like` changes nothing."""
        states = self.tower.encode(self._forward(_TEXT), prompts, num_chunks=1)
        assert states.pooled_BE is not None, "the text encoder has a projection"
        return PooledConditioning(states.states_BLD, states.pooled_BE)

    def encode_images(self, images_B3PP: torch.Tensor, generator: torch.Generator | None = None) -> torch.Tensor:
        """Return the latents (B, C, H, W) of images in [-1, 1], each encoded as a whole: its channels are weighed by
        their means. Nothing is drawn.
        """
        dtype = next(self.vae.parameters()).dtype
        return torch.cat([self.vae.encode(image[None].to(dtype)).latent_dist.mode() for image in images_B3PP])

    def decode(
        self, latents_BCHW: torch.Tensor, tiling: Tiling = VAE_TILES, prompts: Conditioning | None = None
    ) -> torch.Tensor:
        """Return the images (B, 3, P, P) of latents, float32 in [-1, 1], each decoded as a whole.

        The decoder reads CLIP's states of the prompts; zeros stand for unknown ones.
        """
        dtype = next(self.vae.parameters()).dtype
        width = self.vae.stage_b.config.clip_text_pooled_in_channels
        pooled_BE = latents_BCHW.new_zeros(len(latents_BCHW), width)
        if prompts is not None:
            pooled_BE = self._text(prompts).pooled_BE[-len(latents_BCHW) :]
        images_B3PP: torch.Tensor = self._forwards.of("vae", self.vae.decode)(
            latents_BCHW.to(dtype), pooled_BE.to(dtype)
        )
        return images_B3PP.float()

    def predict(
        self,
        noisy_BCHW: torch.Tensor,
        timesteps_B: torch.Tensor,
        conditioning: Conditioning,
        inputs: Mapping[str, torch.Tensor] = NO_INPUTS,
    ) -> torch.Tensor:
        """Return the predicted noise (B, 16, H, W). The prior reads the time in (0, 1], and no image."""
        text, dtype = self._text(conditioning), self._input_dtype()
        no_image_B1D = noisy_BCHW.new_zeros(len(noisy_BCHW), 1, self.denoiser.config.clip_image_in_channels)
        output = self._forward("prior")(
            sample=noisy_BCHW.to(dtype),
            timestep_ratio=(timesteps_B.float() + 1.0) / self.process.num_timesteps,
            clip_text_pooled=text.pooled_BE[:, None].to(dtype),
            clip_text=text.states_BLD.to(dtype),
            clip_img=no_image_B1D.to(dtype),
            return_dict=False,
        )
        noise_BCHW: torch.Tensor = output[0]
        return noise_BCHW

    def text_identity(self) -> str:
        """Return everything but the weights that affects how a prompt is encoded."""
        return self.tower.identity()

    def count_tokens(self, prompt: str) -> int:
        """Return the number of tokens of a prompt, without start and end."""
        return self.tower.tokenizer.count(prompt)

    # -- embeddings

    def token_ids(self, part: str, text: str) -> list[int]:
        """Return the ids of a text's tokens."""
        return self.tower.tokenizer.ids(text)

    def add_words(self, rows: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """Add embeddings: new rows (N, D) by placeholder and text encoder. All in one call."""
        ids = add_words({_TEXT: self.tower.encoder}, rows)
        self.tower = replace(self.tower, tokenizer=self.tower.tokenizer.with_words(ids.get(_TEXT, {})))

    @torch.no_grad()
    def word_states(self, part: str, placeholder: str) -> torch.Tensor:
        """Return CLIP's states (N, D) at the places of an embedding, in a prompt of it alone, in float32."""
        states_1LD = self.tower.encode(self._forward(_TEXT), [placeholder], num_chunks=1).states_BLD
        return states_1LD[0, 1 : 1 + len(self.tower.tokenizer.words[placeholder])].float().clone()

    def add_outputs(self, part: str, placeholder: str, rows_ND: nn.Parameter) -> None:
        """Replace CLIP's states at the places of an embedding by rows (N, D)."""
        extended(self.tower.encoder).add_outputs(self.tower.tokenizer.words[placeholder], rows_ND)


EFFNET_FILE = "effnet_encoder.safetensors"
"""The file of the image encoder in the decoder's folder, as published."""


def load(request: LoadRequest[StableCascadeSettings]) -> StableCascade:
    """Load the model with every part on the CPU and frozen.

    Raises DarkroomError where a file is missing or the model is not Stable Cascade.
    """
    spec = STABLE_CASCADE
    files = read_model(request, spec.in_base_model)
    autoencoder = _empty() if "vae" in request.without_weights else _read_autoencoder(request, files)
    scheduler = {**files.scheduler, "timestep_spacing": "trailing"}
    process = DDPMProcess(
        cosine_cumulative_alphas(scaler=float(scheduler.get("scaler", 1.0)), offset=float(scheduler.get("s", 0.008)))
    )
    tokenizer = load_clip_tokenizer(files.tokenizers.get("text_encoder"))
    return StableCascade(
        spec=spec,
        modules={**files.parts, "vae": autoencoder},
        process=process,
        scheduler=scheduler,
        folder=files.folder,
        lora_naming=naming_of(spec.name, files.parts, prediction=process.prediction_type),
        tower=TextTower(files.parts["text_encoder"], tokenizer, skipped_layers=0, is_normed=False, masks_padding=True),
    )


def _empty() -> Any:
    """Return an autoencoder of the published shape without weights, for a run that neither encodes nor decodes."""
    module = empty_part(StableCascadeAutoencoder, published(STABLE_CASCADE.name).shipped_configs()["vae"])
    return module.eval().requires_grad_(False)


def _read_autoencoder(request: LoadRequest[StableCascadeSettings], base: ModelFiles) -> Any:
    """Return the autoencoder with the weights of the decoder's folder and of the encoder's file."""
    own_file, dtype = request.settings.effnet_encoder.strip(), _dtype_of(request)
    folder = _decoder_folder(request, base)
    tensors = _read_effnet(from_root(own_file) if own_file else folder / EFFNET_FILE)
    decoder, vqgan = (
        read_part(folder, "decoder", StableCascadeUNet, dtype),
        read_part(folder, "vqgan", PaellaVQModel, dtype),
    )
    try:
        module = empty_part(
            StableCascadeAutoencoder,
            {
                "decoder": _own(decoder.config),
                "vqgan": _own(vqgan.config),
                "stages": [astuple(stage) for stage in stages_of({n: tuple(t.shape) for n, t in tensors.items()})],
                "width": tensors["mapper.0.weight"].shape[1],
                "latent_channels": tensors["mapper.0.weight"].shape[0],
            },
        )
        module.effnet.load_state_dict({n: _cast(tensor, dtype) for n, tensor in tensors.items()}, assign=True)
    except (KeyError, ValueError, IndexError, RuntimeError) as error:
        raise DarkroomError(
            "The EfficientNet encoder does not have the weights of Stable Cascade's.",
            advice=f"Choose {EFFNET_FILE} of {StableCascadeSettings().decoder}, or leave its field empty.",
        ) from error
    module.stage_b, module.stage_a = decoder, vqgan
    return module.eval().requires_grad_(False)


def _decoder_folder(request: LoadRequest[StableCascadeSettings], base: ModelFiles) -> Path:
    """Return the folder of the decoder: the base model's own, if it is there, or that of the settings."""
    if base.folder is not None and (base.folder / "decoder").is_dir():
        return base.folder
    try:
        return locate(
            request.settings.decoder,
            parts=("decoder", "vqgan"),
            files=(EFFNET_FILE,),
            offline=request.offline,
            cache_dir=request.hub_cache_dir,
            hub=request.hub,
            on_bytes=request.on_bytes,
        )
    except MissingModelError as error:
        raise DarkroomError(
            f"The decoder {request.settings.decoder!r} is not on this machine, and could not be downloaded.",
            advice="Choose its folder or repository as Decoder, in the settings of the model family. It decodes "
            "samples, and contains the encoder of images.",
        ) from error


def _read_effnet(file: Path) -> dict[str, torch.Tensor]:
    if not file.is_file():
        raise DarkroomError(
            f"The EfficientNet encoder, {file}, does not exist. Without it no image can be encoded.",
            advice=f"Put {EFFNET_FILE} into the decoder's folder, or choose it in the settings of the family.",
        )
    return read_safetensors(file)[0]


def _own(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config without the place and the version that diffusers adds to it."""
    return {key: value for key, value in config.items() if not key.startswith("_")}


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor in a dtype; counters stay whole numbers."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _dtype_of(request: LoadRequest[StableCascadeSettings]) -> torch.dtype:
    """Return the dtype of the autoencoder: float16 is too small for the decoder's states."""
    wanted = request.dtype_of("vae")
    return request.fallback_dtype if wanted == torch.float16 else wanted
