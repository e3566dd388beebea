"""What files of the toy transformer look like, and its layers in adapter files. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator

from modules.families.parts.single_file.detect import denoiser_kind
from modules.families.parts.single_file.record import SingleFile
from modules.families.published import Configs, FamilyFiles, PublishedModel
from modules.formats.adapter_targets import AdapterTarget, AdapterTargets
from tests.builders.toy_transformer.transformer_file import TRANSFORMER_FILE


def _layers(configs: Configs) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield all linear layers with the shapes of their weights (out, in)."""
    config = configs["transformer"]
    width, refiners = int(config["dim"]), int(config["n_refiner_layers"])
    inner, time, patch = int(width / 3 * 8), min(width, 256), 4 * int(config["in_channels"])
    counts = {"layers": int(config["n_layers"]), "noise_refiner": refiners, "context_refiner": refiners}
    for block in (f"{group}.{index}" for group, count in counts.items() for index in range(count)):
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield f"{block}.attention.{name}", (width, width)
        for name, shape in (("w1", (inner, width)), ("w2", (width, inner)), ("w3", (inner, width))):
            yield f"{block}.feed_forward.{name}", shape
        if not block.startswith("context"):
            yield f"{block}.adaLN_modulation.0", (4 * width, time)
    yield "all_x_embedder.2-1", (width, patch)
    yield "all_final_layer.2-1.linear", (patch, width)
    yield "all_final_layer.2-1.adaLN_modulation.1", (width, time)
    yield "cap_embedder.1", (width, int(config["cap_feat_dim"]))
    yield "t_embedder.mlp.0", (1024, 256)
    yield "t_embedder.mlp.2", (time, 1024)


def _targets(configs: Configs) -> AdapterTargets:
    return AdapterTargets.of(
        AdapterTarget("transformer", path, shape, {"diffusers": path}, "lora_unet_", "diffusers")
        for path, shape in _layers(configs)
    )


MODEL = PublishedModel(
    name="toy_transformer",
    label="Toy transformer",
    family="toy_transformer",
    architecture="toy-transformer",
    kohya_version="toy_transformer",
    adapter_targets=_targets,
    pipelines={"": "ToyTransformerPipeline"},
    single_file=SingleFile(
        parts=lambda configs: (TRANSFORMER_FILE.layout(configs["transformer"]),),
        original_names=TRANSFORMER_FILE.original_names,
    ),
    programs=(),
)
FILES = FamilyFiles(
    models=(MODEL,),
    pipelines={"ToyTransformerPipeline": ""},
    folder_model=lambda facts: MODEL.name,
    checkpoint=lambda header: denoiser_kind(header, MODEL, "transformer", TRANSFORMER_FILE, "flow"),
    denoiser_file=TRANSFORMER_FILE,
    lora_words=(("toy-transformer", MODEL.name),),
    repository_model=lambda name: MODEL.name,
)
