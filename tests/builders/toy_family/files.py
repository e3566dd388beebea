"""What files of the toy family look like: a folder by its pipeline, a LoRA by its metadata. Torch-free."""

from __future__ import annotations

from modules.families.parts.lora_names import unet_clip_targets
from modules.families.published import FamilyFiles, PublishedModel

TOY_PIXEL = PublishedModel(
    name="toy_pixel",
    label="Toy pixel diffusion",
    family="toy_pixel",
    architecture="toy-pixel",
    kohya_version="toy_pixel",
    adapter_targets=unet_clip_targets({"text_encoder": "lora_te"}, writes_sgm=False),
    pipelines={"": "ToyPixelPipeline"},
    programs=(),
)

FILES = FamilyFiles(
    models=(TOY_PIXEL,),
    pipelines={"ToyPixelPipeline": ""},
    folder_model=lambda facts: TOY_PIXEL.name,
    lora_words=(("toy-pixel", TOY_PIXEL.name),),
    repository_model=lambda name: TOY_PIXEL.name,
)
