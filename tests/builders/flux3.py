"""A tiny random FLUX.3 klein base, written as the folder of a modular pipeline with a tokenizer of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import ClassifierFreeGuidance, FlowMatchEulerDiscreteScheduler, Flux3AutoBlocks
from diffusers.models.transformers.transformer_flux3 import Flux3Transformer2DModel
from transformers import PreTrainedTokenizerFast, Qwen3VLConfig, Qwen3VLForConditionalGeneration

from tests.builders.flow_models import FlowModel
from tests.builders.flux2_klein import tiny_flux2_vae
from tests.builders.krea2 import tiny_qwen_vl
from tests.builders.models import write_folder
from tests.builders.z_image import write_tokenizer

SCHEDULER = {"_class_name": "FlowMatchEulerDiscreteScheduler", "num_train_timesteps": 1000, "shift": 6.93}
_LAYERS = 33  # one more than are read
_TEXT_WIDTH = 8


class TextProcessor:
    """The processor of the pipeline for prompts without images: transformers' own needs torchvision."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self.tokenizer = tokenizer

    def apply_chat_template(self, messages: Sequence[Mapping[str, Any]], **_: object) -> str:
        """Return the text of a user's message in Qwen3-VL's template, with the beginning of an answer."""
        [message] = messages
        return f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"


def tiny_transformer(*, flow_map: bool = False) -> Flux3Transformer2DModel:
    """A transformer with a block of each kind, and one more joint one, whose gates are open.

    Its time has little effect, as in a trained model: the embedding multiplies by 1000 the last bit in which our noise
    levels differ from diffusers'.
    """
    transformer = Flux3Transformer2DModel(
        num_layers=1,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=8 * _TEXT_WIDTH,
        timestep_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
        flow_map=flow_map,
    )
    with torch.no_grad():
        transformer.timestep_embedder.linear_1.weight.mul_(0.05)
        transformer.timestep_embedder.linear_2.weight.mul_(4.0)
        for modulations in (transformer.early_stream_modulations, transformer.single_stream_modulations):
            for modulation in modulations.values():
                modulation.linear.weight.mul_(4.0)
    return transformer


def tiny_qwen_vl_of_33_layers() -> Qwen3VLForConditionalGeneration:
    """Krea 2's vision-language model, narrower, and with as many layers as are read."""
    config: Qwen3VLConfig = tiny_qwen_vl().config
    config.text_config.num_hidden_layers = _LAYERS
    config.text_config.hidden_size = _TEXT_WIDTH
    config.vision_config.out_hidden_size = _TEXT_WIDTH
    config.vision_config.deepstack_visual_indexes = []
    return Qwen3VLForConditionalGeneration(config)


def write_flux3_folder(folder: Path, *, flow_map: bool = False) -> Path:
    """Write the model as diffusers does: without a scheduler, which the pipeline makes itself."""
    parts = {
        "transformer": lambda: tiny_transformer(flow_map=flow_map),
        "text_encoder": tiny_qwen_vl_of_33_layers,
        "vae": tiny_flux2_vae,
    }
    name = "Flux3Distilled" if flow_map else "Flux3"
    write_folder(folder, f"{name}ModularPipeline", parts, SCHEDULER, seed=0)
    write_tokenizer(folder / "tokenizer")
    (folder / "scheduler" / "scheduler_config.json").unlink()
    (folder / "scheduler").rmdir()
    (folder / "model_index.json").unlink()
    classes = {
        "text_encoder": ["transformers", "Qwen3VLForConditionalGeneration"],
        "tokenizer": ["transformers", "Qwen3VLProcessor"],
        "transformer": ["diffusers", "Flux3Transformer2DModel"],
        "vae": ["diffusers", "AutoencoderKLFlux2"],
    }
    index: dict[str, Any] = {
        part: [*value, {"pretrained_model_name_or_path": "no/where", "subfolder": part, "type_hint": value}]
        for part, value in classes.items()
    }
    names = {"_class_name": f"{name}ModularPipeline", "_blocks_class_name": f"{name}AutoBlocks"}
    (folder / "modular_model_index.json").write_text(json.dumps({**names, **index}))
    return folder


def transformer_of_diffusers(denoiser: Any) -> Flux3Transformer2DModel:
    """diffusers' own class with the weights of ours."""
    transformer = Flux3Transformer2DModel.from_config(dict(denoiser.config))
    transformer.load_state_dict(denoiser.state_dict())
    return transformer.eval()


def flux3_pipeline(folder: Path, family: Any) -> Any:
    """diffusers' pipeline of a loaded model's parts. The text encoder is the library's own class, and the transformer
    is while it samples.
    """
    blocks = Flux3AutoBlocks()
    blocks.sub_blocks.pop("prompt_upsampler")  # another language model, which makes a caption of a prompt
    pipe = blocks.init_pipeline()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder / "tokenizer", local_files_only=True)
    encoder = Qwen3VLForConditionalGeneration.from_pretrained(folder / "text_encoder", local_files_only=True)
    pipe.update_components(
        text_encoder=encoder.eval(),
        tokenizer=TextProcessor(tokenizer),
        transformer=family.denoiser,
        vae=family.vae,
        scheduler=FlowMatchEulerDiscreteScheduler.from_config(SCHEDULER),
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _pipeline_text(pipe: Any, prompt: str) -> Mapping[str, torch.Tensor]:
    state = pipe(prompt=prompt, num_inference_steps=1, height=16, width=16, output_type="pt")
    return {"states": state.get("prompt_embeds")}


def _pipeline_sample(
    pipe: Any, prompt: str, noise_BCHW: torch.Tensor, guidance: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normalised latents, without patches, and images of the pipeline."""
    height, width = (8 * side for side in noise_BCHW.shape[-2:])
    pipe.update_components(
        guider=ClassifierFreeGuidance(guidance_scale=guidance), transformer=transformer_of_diffusers(pipe.transformer)
    )
    options = {"num_inference_steps": 4, "height": height, "width": width, "output_type": "pt"}
    patches = torch.nn.functional.pixel_unshuffle(noise_BCHW, 2)
    state = pipe(prompt=prompt, latents=patches, **options)
    return torch.nn.functional.pixel_shuffle(state.get("latents"), 2), state.get("images")


TINY = FlowModel(
    "flux3",
    write_flux3_folder,
    flux3_pipeline,
    _pipeline_text,
    _pipeline_sample,
    published_shapes={
        "emb_in.image.weight": (3072, 128),
        "emb_in.image_cond.weight": (3072, 128),
        "txt_in.weight": (3072, 20480),
        "time_in.in_layer.weight": (3072, 256),
        "time_in.out_layer.weight": (3072, 3072),
        "early_stream_modulations.image.lin.weight": (9216, 3072),
        "single_stream_modulations.txt.lin.weight": (9216, 3072),
        "content_mode_blocks.image.4.q_proj.weight": (3072, 3072),
        "content_mode_blocks.image_cond.4.mlp_out.weight": (3072, 9216),
        "txt_mode_blocks.4.norm.query_norm.scale": (128,),
        "single_blocks.27.attn_out.weight": (3072, 3072),
        "single_blocks.27.mlp_in.weight": (18432, 3072),
        "final_layer.image.adaLN_modulation.1.weight": (6144, 3072),
        "final_layer.image.linear.weight": (128, 3072),
    },
    published_weights=5_538_458_368,
    unread=("kohya", "comfyui"),  # with alphas: diffusers raises an error
    attends_to_padding=True,
)
