"""The run of a preset in stage 5: its config with a random model, and images of noise as its data."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

from benchmarks.full_size import draw_noise
from benchmarks.gpu.models import IMAGE_TOKENS, WITH_HOLES, device_of, model_of, offload_name, random_model, subjects
from benchmarks.gpu.stage import Request
from benchmarks.loop_speed import for_measuring
from benchmarks.random_models import Shapes
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.config.usage import learns_from
from modules.data.image_settings import CONDITIONING_FOLDERS
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import files_of, published_model
from modules.settings.shared_types import side_of
from modules.system.atomic import remove_folder

NUM_IMAGES = 2
_NUM_STEPS, _SAMPLE_STEPS, _TINY_PX = 5, 4, 64
_CAPTION = "an image of noise"
_MASK_CHANNELS = 5  # inputs of an inpainting model's UNet besides the noisy latents

Tree = dict[str, Any]


def model_name(config: Config) -> str:
    """Return the published model that a preset trains."""
    return files_of(config.model.family.name).repository_model(config.model.base_model)


def num_steps(config: Config) -> int:
    """Return how many steps of a preset are run: one, if it samples the images that it learns from."""
    return 1 if learns_from(config) == "prompts" else _NUM_STEPS


def run_config(request: Request, plain: Config, folder: Path) -> Config:
    """Return a preset's config for a few steps, a sample and a validation.

    Images are scored by their brightness, because there are no reward models here, and no person to choose. A step that
    samples images does so once: accumulation would only repeat it.
    """
    device, side_px = device_of(request), _TINY_PX if request.is_tiny else side_of(plain.data.resolution_px[0])
    tree = encode(for_measuring(plain, folder, epochs=1))
    tree["general"] |= {"train_device": device.name, "temp_device": offload_name(device)}
    tree["model"] |= {"base_model": str(_folder_of(request, plain)), "offline": True}
    tree["data"] |= {"resolution_px": [side_px]}
    prompt: Tree = {"prompt": "noise", "width_px": side_px, "height_px": side_px, "steps": _SAMPLE_STEPS}
    tree["sampling"] |= {"prompts": [prompt], "at_end": True}
    tree["validation"] |= {"every": {"n": 1, "unit": "epoch"}}
    tree["backup"] |= {"at_end": False}
    name = "model" if plain.training.trains == "full" else "model.safetensors"
    tree["output"] |= {"destination": str(folder / "workspace" / name)}
    if plain.training.trains == "full":
        tree["output"] |= {"model_format": "diffusers"}
    if learns_from(plain) == "prompts":
        _score_by_brightness(tree)
    images = _noise_images(request.folder / f"noise-{side_px}-{plain.training.trains}", side_px, _caption_of(plain))
    per_step = tree["training"]["batch_size"] * tree["training"]["accumulation_steps"]
    repeats = math.ceil(num_steps(plain) * per_step / NUM_IMAGES)
    tree["concepts"] = _concepts(plain, images, repeats)
    if plain.model.variant == "edit":
        prompt["reference_image"] = str(images / "0.png")
    return decode(tree).config


def _score_by_brightness(tree: Tree) -> None:
    tree["training"] |= {"accumulation_steps": 1}
    method = tree["training"]["method"]
    method |= {key: value for key, value in {"chosen_by": "reward", "held_out_reward": "none"}.items() if key in method}
    tree["reward"] |= {"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}}


def _caption_of(config: Config) -> str:
    """Return a caption with the words that are trained."""
    words = config.embeddings.words if config.training.trains == "embedding" else ()
    return " ".join((_CAPTION, *(word.placeholder for word in words)))


def _concepts(config: Config, images: Path, repeats: int) -> list[Tree]:
    concept: Tree = {"name": "noise", "path": str(images), "repeats": repeats}
    if learns_from(config) == "pairs":
        return [concept | {"path": str(_pairs_of(images)), "kind": "pairs"}]
    references = {CONDITIONING_FOLDERS[0]: str(_copy_images(images))} if config.model.variant == "edit" else {}
    shown = {"image": references} if references else {}
    validation: Tree = {"name": "validation", "path": str(images), "kind": "validation"}
    return [concept | shown] if learns_from(config) == "prompts" else [concept | shown, validation | shown]


def _noise_images(folder: Path, side_px: int, caption: str) -> Path:
    if not folder.is_dir():
        draw_noise(folder, num_images=NUM_IMAGES, side_px=side_px, caption=caption)
    return folder


def _pairs_of(images: Path) -> Path:
    """Return a folder of pairs: each image next to another one."""
    folder, files = images.with_name(f"{images.name}-pairs"), sorted(images.glob("*.png"))
    for side, order in (("chosen", files), ("rejected", files[::-1])):
        (folder / side).mkdir(parents=True, exist_ok=True)
        for file, content in zip(files, order, strict=True):
            shutil.copyfile(content, folder / side / file.name)
    for caption in images.glob("*.txt"):
        shutil.copyfile(caption, folder / "chosen" / caption.name)
    return folder


def _copy_images(images: Path) -> Path:
    """Return a folder with copies of images, for use as reference images."""
    folder = images.with_name(f"{images.name}-before")
    folder.mkdir(exist_ok=True)
    for file in images.glob("*.png"):
        shutil.copyfile(file, folder / file.name)
    return folder


def _folder_of(request: Request, plain: Config) -> Path:
    """Return the model of a preset. Other models are removed from the disk, except the ones that stages use."""
    shapes = shapes_of(plain)
    if request.is_tiny:
        return next(model_of(request, s) for s in subjects(request) if s.family == published_model(shapes.model).family)
    name = folder_name(plain)
    models = request.folder / "models"
    for other in models.iterdir() if models.is_dir() else ():
        if other.name.removesuffix(WITH_HOLES) not in {name, *(subject.model for subject in subjects(request))}:
            remove_folder(other)
    copies = 2 if plain.training.trains == "full" else 1  # the result of a fine-tune is a model, too
    return random_model(request, shapes, name=name, copies=copies)


def folder_name(config: Config) -> str:
    """Return the name of the folder of a preset's model: presets with the same shapes share it."""
    return config.model.base_model.rpartition("/")[2] if shapes_of(config).changes else model_name(config)


def shapes_of(config: Config) -> Shapes:
    """Return the shapes of a preset's model. Those of a variant differ from the published base model's.

    An inpainting model has more inputs; one whose text encoder sees references has the vision encoder, too.
    """
    model, denoiser = model_name(config), config.family.denoiser.name
    if config.model.variant == "inpainting":
        channels = shipped_configs(model)[denoiser]["in_channels"]
        return Shapes(model, changes={denoiser: {"in_channels": channels + _MASK_CHANNELS}})
    if config.family.seen_with_captions is None:
        return Shapes(model)
    start, pad, end = IMAGE_TOKENS.values()
    tokens = {"image_token_id": pad, "vision_start_token_id": start, "vision_end_token_id": end}
    own = files_of(config.model.family.name).configs_named(config.model.base_model)
    return Shapes(model, config.model.variant, {denoiser: own[denoiser], "text_encoder": tokens})
