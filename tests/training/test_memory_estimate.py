"""The memory estimate against real passes of full-size models, and against the models' real weights."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers.models.autoencoders.autoencoder_kl import AutoencoderKL
from diffusers.models.unets.unet_2d_condition import UNet2DConditionModel
from safetensors.torch import load_file
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection

from modules.adapters.loha import Loha
from modules.adapters.lokr import Lokr
from modules.adapters.lora import Lora
from modules.adapters.lora_layers import LORA_KIND, LoraShape, attach_lora
from modules.adapters.oft import Oft
from modules.adapters.protocol import kind_of, target_layers
from modules.adapters.ranks import layers_with_rank, settings_by_layer
from modules.adapters.registry import ADAPTERS
from modules.estimate.architecture import architecture_of
from modules.estimate.passes import count
from modules.estimate.recordings import recordings_of
from modules.estimate.run import estimate
from modules.estimate.run_plan import RunPlan
from modules.families.parts.forwards import block_types, transformer_types
from modules.families.parts.part_classes import CLIP_TEXT, KL_VAE, UNET, UNET_LAYERS
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import FAMILIES
from modules.families.spec import Role
from modules.formats.gguf_header import BlockType
from modules.memory.arrays import Tape
from modules.memory.checkpointing import create_checkpointed_forward
from modules.memory.part_plan import AdapterPlan, PartPlan
from modules.memory.recording import PassSize
from modules.memory.replay import Replay
from modules.objectives.perceptual import PerceptualDistance, image_scaling
from modules.objectives.perceptual_files import STAGES, WIDTHS, perceptual_bytes
from modules.optim.optimizers.factored import Adafactor
from modules.quantization import linear, packing
from modules.quantization.linear import QuantizedLinear, quantize_layers
from modules.quantization.packing import ROWS, GgufBlocks, PackedWeight
from modules.quantization.registry import FORMATS, ChosenFormat, Residual
from modules.settings.layer_filter import EVERYTHING, layer_filter
from modules.system.devices import CPU
from tests.builders.adapter_plans import dora_plan, lora_plan
from tests.builders.budgets import budget_of_run
from tests.builders.configs import small_config
from tests.builders.live_bytes import LiveBytes, cuda_autocast, give_weights, is_adapter
from tests.builders.pipelines import load_tiny
from tests.builders.runs import run
from tests.builders.single_files import write_tiny
from trainer.data.datasets import datasets_of
from trainer.preflight.budget import disk_need
from trainer.preflight.passes import passes_of

FACTOR = 0.15
RANK = 8
ENTRIES = {"denoiser": ("attentions",), "text_encoder": ("layers.",)}
FAMILY = {"sd1": "sd", "sd2": "sd", "sdxl": "sdxl"}


def meta_part(model: str, part: str) -> Any:
    """A full-size part without weights."""
    config = shipped_configs(model)[part]
    with torch.device("meta"):
        if part == "unet":
            return UNet2DConditionModel.from_config(config)
        if part == "vae":
            return AutoencoderKL.from_config(config)
        kind = CLIPTextModelWithProjection if part == "text_encoder_2" else CLIPTextModel
        return kind(CLIPTextConfig(**config))


# -- weights, exactly


@pytest.mark.parametrize("model", ["sd1", "sd2", "sdxl"])
def test_every_published_weight_is_counted(model: str) -> None:
    spec = FAMILIES[FAMILY[model]]
    passes = passes_of(spec, shipped_configs(model))
    for part in spec.parts:
        real = meta_part(model, part.name)
        found = passes.weights(part.name, PartPlan()).shapes
        assert sorted(found.values()) == sorted(tuple(p.shape) for p in real.parameters()), part.name


@pytest.mark.parametrize(("model", "millions"), [("sd1", 859.5), ("sd2", 865.9), ("sdxl", 2567.5)])
def test_the_known_sizes_of_unets(model: str, millions: float) -> None:
    passes = passes_of(FAMILIES[FAMILY[model]], shipped_configs(model))
    assert count(passes.weights("unet", PartPlan()).shapes.values()) / 1e6 == pytest.approx(millions, abs=0.1)


@pytest.mark.full
@pytest.mark.parametrize("name", ["tiny_sd", "tiny_sd2", "tiny_sdxl"])
def test_weights_of_a_folder_are_counted_from_its_configs(name: str, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(name)
    family = load_tiny(folder)
    architecture = architecture_of(str(folder), family.spec.name)
    assert architecture is not None
    assert not architecture.is_published
    passes = passes_of(family.spec, architecture.configs)
    for part_name, part in family.parts.items():
        found = passes.weights(part_name, PartPlan()).shapes
        assert count(found.values()) == sum(p.numel() for p in part.module.parameters()), part_name


@pytest.mark.parametrize("model", ["sd1", *(pytest.param(m, marks=pytest.mark.full) for m in ("sd2_v", "sdxl"))])
def test_weights_of_a_single_file_are_counted_from_its_header(model: str, tmp_path: Path) -> None:
    parts = write_tiny(tmp_path / "model.safetensors", model)
    family = "sdxl" if model == "sdxl" else "sd"
    architecture = architecture_of(str(tmp_path / "model.safetensors"), family)
    assert architecture is not None
    passes = passes_of(FAMILIES[family], architecture.configs)
    for name, part in parts.items():
        found = passes.weights(name, PartPlan()).shapes
        assert count(found.values()) == sum(p.numel() for p in part.parameters()), name


@pytest.mark.parametrize(
    ("name", "family", "text_width"),
    [
        ("stable-diffusion-v1-5/stable-diffusion-v1-5", "sd", 768),
        ("stabilityai/stable-diffusion-2-1", "sd", 1024),
        ("stabilityai/stable-diffusion-xl-base-1.0", "sdxl", 2048),
    ],
)
def test_a_repository_counts_as_the_published_model(name: str, family: str, text_width: int) -> None:
    architecture = architecture_of(name, family)
    assert architecture is not None
    assert architecture.is_published
    assert architecture.configs["unet"]["cross_attention_dim"] == text_width


@pytest.mark.parametrize("content", [b"", b"{}", b"<html>", b"\x80\x02junk"])
def test_a_file_that_is_not_a_model_has_no_architecture(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    assert architecture_of(str(tmp_path / "model.safetensors"), "sd") is None


@pytest.mark.parametrize("layers", ["attention_mlp", "attention", "all", "custom"])
def test_a_lora_is_counted_from_shapes_and_the_filter(layers: str) -> None:
    unet = meta_part("sd1", "unet")
    names = target_layers(
        unet, "denoiser", layers=layer_filter(layers, UNET_LAYERS, "attn2, ff.net.2"), reaches=lambda name: True
    )
    with torch.device("meta"):
        adapter = attach_lora("unet", unet, names, LoraShape(RANK, 1.0, 0.0, torch.float32), seed=0)
    entries = {"attention_mlp": ("attentions",), "attention": ("attn",), "all": ("",)}.get(
        layers, ("attn2", "ff.net.2")
    )
    plan = PartPlan(trains="adapter", adapter=lora_plan(RANK, 4, entries))
    found = passes_of(FAMILIES["sd"], shipped_configs("sd1")).weights("unet", plan).adapter
    assert sorted(found.values()) == sorted(tuple(p.shape) for p in adapter.parameters().values())


@pytest.mark.parametrize(
    "settings",
    [
        *(Lokr(rank=4, vec_trick=False, **own) for own in ({}, {"decompose_both": True}, {"full_matrix": True})),
        *(Lokr(rank=4, use_tucker=True, vec_trick=vec_trick) for vec_trick in (True, False)),
        *(Loha(rank=4, use_tucker=use_tucker) for use_tucker in (True, False)),
        *(Oft(rotates=rotates, rescale=True, block_share=shares) for rotates, shares in (
            ("outputs", False), ("outputs", True), ("inputs", False), ("inputs", True)
        )),
    ],
    ids=str,
)  # fmt: skip
def test_an_adapter_of_another_kind_is_counted_from_shapes(settings: Lokr | Loha | Oft) -> None:
    unet, spec = meta_part("sd1", "unet"), ADAPTERS[settings.name]
    names = target_layers(unet, "denoiser", layers=EVERYTHING, reaches=lambda name: True)
    with torch.device("meta"):
        adapter = kind_of(spec).attach("unet", unet, names, settings, seed=0)
    assert spec.memory is not None
    plan = PartPlan(trains="adapter", adapter=AdapterPlan(settings, spec.memory, 4, EVERYTHING))
    found = passes_of(FAMILIES["sd"], shipped_configs("sd1")).weights("unet", plan).adapter
    assert sorted(found.values()) == sorted(tuple(p.shape) for p in adapter.parameters().values())


def test_ranks_by_layer_and_magnitudes_are_counted_from_shapes() -> None:
    options = {
        "layer_ranks": "attn2 = 3\nre:^mid_block = 5\nff = 0",
        "conv_rank": 2,
        "decompose": True,
        "decompose_output_axis": True,
    }
    unet, lora = meta_part("sd1", "unet"), Lora(rank=4, **options)
    has_rank = layers_with_rank(lora, "unet")
    assert has_rank is not None
    names = target_layers(unet, "denoiser", layers=EVERYTHING, reaches=lambda name: True)
    with torch.device("meta"):
        adapter = LORA_KIND.attach("unet", unet, [name for name in names if has_rank(name)], lora, seed=0)
    own = {"settings_at": settings_by_layer(lora, "unet"), "has_rank": has_rank}
    by_layer = replace(dora_plan(lora, "outputs"), layers=EVERYTHING, **own)
    found = passes_of(FAMILIES["sd"], shipped_configs("sd1")).weights(
        "unet", PartPlan(trains="adapter", adapter=by_layer)
    )
    assert sorted(found.adapter.values()) == sorted(tuple(p.shape) for p in adapter.parameters().values())


# -- the memory of a pass


@dataclass(frozen=True)
class Case:
    """A pass of a full-size UNet."""

    model: str
    side_px: int
    batch: int
    trains: str
    dtype: torch.dtype
    is_mixed: bool
    mode: str
    quantized: str = ""

    @property
    def chosen(self) -> ChosenFormat | None:
        if not self.quantized:
            return None
        name, _, has_residual = self.quantized.partition("+")
        residual = Residual(RANK, "bfloat16") if has_residual else None
        return ChosenFormat(FORMATS[name], EVERYTHING, residual, STORED if FORMATS[name].is_stored else None)

    @property
    def plan(self) -> PartPlan:
        return PartPlan(
            weight_bytes=self.dtype.itemsize,
            compute_bytes=2 if self.is_mixed else 0,
            trains=TRAINS.get(self.trains, "adapter"),
            adapter=ADAPTER_PLANS.get(self.trains),
            checkpointing=self.mode,
            quantized=self.chosen,
        )

    def __str__(self) -> str:
        kind = f"{str(self.dtype).removeprefix('torch.')}{'-mixed' if self.is_mixed else ''}"
        return f"{self.model}-{self.side_px}x{self.batch}-{self.trains}-{kind}-{self.mode}{self.quantized}"


TRAINS = {"full": "full", "embedding": "nothing"}
BF16, F32 = torch.bfloat16, torch.float32
ADAPTER_PLANS = {
    "adapter": lora_plan(RANK, 4, ("attentions",)),
    "lokr": AdapterPlan(Lokr(rank=4), ADAPTERS["lokr"].memory, 4, layer_filter("attention_mlp", UNET_LAYERS)),
    "lokr as a whole": AdapterPlan(
        Lokr(rank=4, vec_trick=False), ADAPTERS["lokr"].memory, 4, layer_filter("attention_mlp", UNET_LAYERS)
    ),
    "loha": AdapterPlan(Loha(rank=4), ADAPTERS["loha"].memory, 4, layer_filter("attention_mlp", UNET_LAYERS)),
    "oft": AdapterPlan(Oft(), ADAPTERS["oft"].memory, 4, layer_filter("attention_mlp", UNET_LAYERS)),
    "oft v2": AdapterPlan(Oft(rotates="inputs"), ADAPTERS["oft"].memory, 4, layer_filter("attention_mlp", UNET_LAYERS)),
    "dora": dora_plan(Lora(rank=RANK, decompose=True, decompose_output_axis=True, init="pissa"), "outputs"),
    "dora of inputs": dora_plan(Lora(rank=RANK, decompose=True, decompose_output_axis=False), "inputs"),
}
DAILY = [
    Case("sd1", 512, 1, "full", F32, False, "off"),
    Case("sd1", 512, 1, "full", F32, True, "block"),
    Case("sd1", 512, 2, "lokr", BF16, True, "block"),
    Case("sd1", 512, 1, "dora", BF16, True, "off"),
    Case("sd1", 512, 1, "adapter", BF16, True, "off", "nfloat4"),
    Case("sd1", 512, 2, "embedding", BF16, True, "block"),
    Case("sdxl", 512, 1, "full", BF16, True, "off"),
    Case("sd1", 512, 1, "adapter", BF16, True, "selective"),
]
REST = [
    Case(model, side_px, batch, trains, dtype, is_mixed, mode)
    for model in ("sd1", "sd2", "sdxl")
    for side_px in (512, 1024)
    for batch in (1, 2)
    for trains in ("full", "adapter")
    for dtype, is_mixed in ((F32, False), (F32, True), (BF16, True), (BF16, False))
    for mode in ("off", "selective", "transformer", "block", "whole")
] + [
    Case(model, side_px, 1, "adapter", dtype, is_mixed, mode, form)
    for model, side_px in (("sd1", 512), ("sdxl", 1024))
    for dtype, is_mixed in ((F32, False), (BF16, True))
    for mode in ("off", "block")
    for form in (*FORMATS, "nfloat4+residual")
]
OF_ADAPTERS = [
    Case("sd1", 512, 1, "lokr", F32, False, "off"),
    Case("sd1", 512, 1, "lokr as a whole", BF16, True, "off"),
    Case("sd1", 512, 1, "loha", BF16, True, "off"),
    Case("sd1", 512, 1, "oft", BF16, True, "off"),
    Case("sd1", 512, 1, "oft", F32, False, "block"),
    Case("sd1", 512, 1, "embedding", F32, False, "off"),
    Case("sd1", 512, 1, "oft v2", BF16, True, "off"),
    Case("sd1", 512, 1, "oft v2", F32, False, "block"),
    Case("sd1", 512, 1, "dora of inputs", F32, True, "block"),
]
CASES = [*DAILY, *(pytest.param(c, marks=pytest.mark.full) for c in [*OF_ADAPTERS, *REST] if c not in DAILY)]


@pytest.mark.full
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_training_pass_needs_the_estimated_memory(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    if case.quantized:  # as on a GPU
        monkeypatch.setattr(packing, "is_eager_gpu", lambda tensor: True)
    if case.quantized and case.is_mixed:  # the autocast here is emulated
        monkeypatch.setattr(linear, "_compute_dtype", lambda x: BF16)
    kept, peak = measured(case)
    # The gradient of an embedding passes through the whole UNet, from its conditioning on.
    estimated_kept, estimated = replayed(
        case.model, "unet", case.plan, case.batch, case.side_px, has_trained_text=case.trains == "embedding"
    )
    if case.mode != "selective":  # torch keeps those results without asking the hooks that are counted here
        assert estimated_kept == pytest.approx(kept, rel=0.05, abs=4_000_000)
    assert estimated == pytest.approx(peak, rel=FACTOR)


def replayed(
    model: str, part: str, plan: PartPlan, batch: int, side_px: int, *, has_trained_text: bool = False
) -> tuple[int, int]:
    """What the replay of a part's pass keeps, and its peak."""
    recording = recordings_of(FAMILIES[FAMILY[model]], shipped_configs(model))[part]["forward"]
    tape = Tape()
    replay = Replay(tape, plan, recording, PassSize(batch, side_px, side_px, 77), records=True)
    results = replay.run(replay.inputs(need_grad=recording.text[:1] if has_trained_text else ()))
    kept, forward = tape.kept_bytes, tape.meter.peak
    del results
    tape.end_forward()
    return kept, max(forward, sum(tape.backward_peak("new")))


class AllInQ4K(dict[str, int]):
    """The bytes of the layers of a file of which every layer is in Q4_K; the shapes of the recording decide them."""

    def __contains__(self, path: object) -> bool:
        return True

    def __missing__(self, path: str) -> int:
        return 0  # weights are not measured here


Q4_K = BlockType("Q4_K", 256, 144)
STORED = AllInQ4K()


def quantize(unet: nn.Module, chosen: ChosenFormat) -> None:
    """Quantize a UNet without values; the layers of a GGUF file are in Q4_K."""
    if not chosen.format.is_stored:
        quantize_layers(unet, chosen)
        return
    for name, layer in list(unet.named_modules()):
        if type(layer) is nn.Linear and chosen.takes(name):
            packed = torch.empty(layer.weight.numel() // 256 * 144, dtype=torch.uint8, device="meta")
            weight = PackedWeight(GgufBlocks(Q4_K), packed, torch.empty(0, device="meta"))
            if rounding := chosen.format.rounds_inputs:
                with torch.device("meta"):
                    weight = PackedWeight(ROWS[rounding], *ROWS[rounding].pack(layer.weight))
            parent, _, attribute = name.rpartition(".")
            setattr(unet.get_submodule(parent), attribute, QuantizedLinear(layer, chosen.format, weight))


def latents(case: Case) -> tuple[int, int]:
    return case.side_px // 8, case.side_px // 8


def measured(case: Case, *, num_passes: int = 1) -> tuple[int, int]:
    """What autograd keeps after the forward pass, and the most that is in use, gradients among it, weights left out.

    Of several passes each gets the result of the one before.
    """
    unet = meta_part(case.model, "unet").train()
    config = shipped_configs(case.model)["unet"]
    if case.chosen is not None:
        quantize(unet, case.chosen)
    if case.trains in ADAPTER_PLANS:
        names = target_layers(
            unet, "denoiser", layers=layer_filter("attention_mlp", UNET_LAYERS), reaches=lambda name: True
        )
        settings = ADAPTER_PLANS[case.trains].settings
        with torch.device("meta"):
            kind_of(ADAPTERS[settings.name]).attach("unet", unet, names, settings, seed=0)
    with FakeTensorMode():
        give_weights(unet, dtype=case.dtype, adapter_dtype=F32, learns=lambda n: case.trains == "full" or is_adapter(n))
        forward = checkpointed(unet, "denoiser", case.mode)
        inputs = {
            "sample": torch.empty(case.batch, 4, *latents(case), dtype=case.dtype),
            "timestep": torch.empty(case.batch, dtype=torch.long),
            "encoder_hidden_states": torch.empty(
                case.batch,
                77,
                config["cross_attention_dim"],
                dtype=case.dtype,
                requires_grad=case.trains == "embedding",
            ),
        }
        if case.model == "sdxl":
            pooled = torch.empty(case.batch, 1280, dtype=case.dtype)
            inputs["added_cond_kwargs"] = {"text_embeds": pooled, "time_ids": torch.empty(case.batch, 6)}

        def run() -> torch.Tensor:
            noisy = inputs["sample"]
            for _ in range(num_passes):
                noisy = forward(**{**inputs, "sample": noisy}, return_dict=False)[0]
            return noisy

        return passed(unet, run, is_mixed=case.is_mixed)


def checkpointed(module: Any, role: Role, mode: str) -> Callable[..., Any]:
    """The forward pass as families run it."""
    model = {"denoiser": UNET, "text_encoder": CLIP_TEXT, "vae": KL_VAE}[role]
    return create_checkpointed_forward(
        module,
        train_device=CPU,
        temp_device=CPU,
        mode=mode,
        block_types=block_types(model),
        transformer_types=transformer_types(model),
    )


def passed(module: Any, run: Callable[[], torch.Tensor], *, is_mixed: bool) -> tuple[int, int]:
    weights = {p.untyped_storage()._cdata for p in module.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage
        return tensor

    mixed: Any = cuda_autocast(BF16) if is_mixed else nullcontext(lambda: None)
    with LiveBytes() as live, mixed as end_forward:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            loss = run().float().mean()
        num_kept = sum(s.nbytes() for s in kept.values())
        kept.clear()
        end_forward()
        loss.backward()
    return num_kept, live.peak


@pytest.mark.daily(1)
@pytest.mark.parametrize("mode", ["off", "block"])
@pytest.mark.parametrize("part", ["text_encoder", "text_encoder_2"])
def test_a_trained_text_encoder_needs_the_estimated_memory(part: str, mode: str) -> None:
    assert_encoder_memory(part, mode, has_autocast=True)


@pytest.mark.parametrize("mode", ["off", pytest.param("block", marks=pytest.mark.full)])
def test_without_autocast_it_needs_the_estimated_memory(mode: str) -> None:
    assert_encoder_memory("text_encoder", mode, has_autocast=False)


def assert_encoder_memory(part: str, mode: str, *, has_autocast: bool) -> None:
    encoder = meta_part("sdxl", part).train()
    names = target_layers(encoder, "text_encoder", layers=EVERYTHING, reaches=lambda name: True)
    with torch.device("meta"):
        adapter = attach_lora(part, encoder, names, LoraShape(RANK, 1.0, 0.0, F32), seed=0)
    if not has_autocast:
        adapter.compute_in_input_dtype(BF16)
    with FakeTensorMode():
        give_weights(encoder, dtype=BF16, adapter_dtype=F32, learns=lambda name: "lora_" in name)
        forward = checkpointed(encoder, "text_encoder", mode)
        ids_BL = torch.zeros(4, 77, dtype=torch.long)
        kept, peak = passed(encoder, lambda: forward(input_ids=ids_BL).last_hidden_state, is_mixed=has_autocast)
    lora = lora_plan(RANK, 4, ("layers.",))
    plan = PartPlan(2, 2, "adapter", lora, checkpointing=mode, autocasts=has_autocast)
    estimated_kept, estimated = replayed("sdxl", part, plan, 4, 64)
    assert estimated_kept == pytest.approx(kept, rel=FACTOR)
    assert estimated == pytest.approx(peak, rel=FACTOR)


# -- passes without gradients


@pytest.mark.parametrize("side_px", [512, 1024])
@pytest.mark.parametrize("encodes", [True, False], ids=["encode", "decode"])
def test_the_vae_needs_the_estimated_memory(side_px: int, encodes: bool) -> None:
    vae = meta_part("sdxl", "vae")
    with FakeTensorMode(), torch.no_grad():
        give_weights(vae, dtype=F32, adapter_dtype=F32, learns=lambda name: False)
        with LiveBytes() as live:
            if encodes:
                vae.encode(torch.empty(1, 3, side_px, side_px)).latent_dist.mode()
            else:
                vae.decode(torch.empty(1, 4, side_px // 8, side_px // 8))
    passes = passes_of(FAMILIES["sdxl"], shipped_configs("sdxl"))
    found = passes.vae_peak(PartPlan(), encodes=encodes, width_px=side_px, height_px=side_px)
    assert found == pytest.approx(live.peak, rel=FACTOR)


@pytest.mark.parametrize(("model", "dtype"), [("sd1", F32), ("sdxl", BF16)])
def test_decoding_with_a_reward_gradient_needs_the_estimated_memory(model: str, dtype: torch.dtype) -> None:
    vae = meta_part(model, "vae")
    with FakeTensorMode():
        give_weights(vae, dtype=dtype, adapter_dtype=F32, learns=lambda name: False)
        latents_1CHW = torch.empty(1, 4, 64, 64, dtype=dtype, requires_grad=True)
        with LiveBytes() as live:
            vae.decode(latents_1CHW).sample.float().mean().backward()
    passes = passes_of(FAMILIES[FAMILY[model]], shipped_configs(model))
    found = passes.decoding_gradient_peak(PartPlan(weight_bytes=dtype.itemsize), width_px=512, height_px=512)
    assert found == pytest.approx(live.peak, rel=FACTOR)


@pytest.mark.daily(1)
@pytest.mark.parametrize(("decoder_only", "mode"), [(True, "off"), (True, "block"), (False, "block")])
@pytest.mark.parametrize("is_mixed", [False, True], ids=["float32", "bfloat16"])
def test_training_the_vae_needs_the_estimated_memory(decoder_only: bool, mode: str, is_mixed: bool) -> None:
    """A batch of two: encoded with or without gradient, decoded, and the backward pass."""
    vae = meta_part("sd1", "vae").train()
    trained = ("decoder.", "post_quant_conv.") if decoder_only else ("",)
    with FakeTensorMode():
        give_weights(vae, dtype=F32, adapter_dtype=F32, learns=lambda name: name.startswith(trained))
        forwards = create_checkpointed_forward(
            vae, train_device=CPU, temp_device=CPU, mode=mode, block_types=block_types(KL_VAE), entry="decode"
        )
        images = torch.empty(2, 3, 256, 256)

        def run() -> torch.Tensor:
            with torch.no_grad() if decoder_only else nullcontext():
                means = vae.encode(images).latent_dist.mean
            return forwards(means).sample

        _, peak = passed(vae, run, is_mixed=is_mixed)
    plan = PartPlan(
        compute_bytes=2 if is_mixed else 0,
        trains="full",
        unreached=("encoder.", "quant_conv") if decoder_only else (),
        checkpointing=mode,
    )
    passes = passes_of(FAMILIES["sd"], shipped_configs("sd1"))
    found = passes.reconstruction_peak(plan, batch=2, width_px=256, height_px=256, gradients="new")
    assert sum(found) == pytest.approx(peak, rel=FACTOR)


@pytest.mark.parametrize("is_mixed", [False, True], ids=["float32", "bfloat16"])
def test_the_perceptual_loss_needs_the_estimated_memory(is_mixed: bool) -> None:
    """Beside the whole decoder; its weights are those of the published VGG16."""
    vae = meta_part("sd1", "vae").train()
    with FakeTensorMode():
        give_weights(vae, dtype=F32, adapter_dtype=F32, learns=lambda name: name.startswith("decoder."))
        forwards = create_checkpointed_forward(
            vae, train_device=CPU, temp_device=CPU, mode="off", block_types=block_types(KL_VAE), entry="decode"
        )
        images, latents = torch.empty(2, 3, 256, 256), torch.empty(2, 4, 32, 32)
        stages, width_in = [], 3
        for stage, width in zip(STAGES, WIDTHS, strict=True):
            widths = [width_in, *[width] * (len(stage) - 1)]
            stages.append([(torch.empty(width, n, 3, 3), torch.empty(width)) for n in widths])
            width_in = width
        distance = PerceptualDistance(stages, [torch.empty(1, n, 1, 1) for n in WIDTHS], image_scaling(CPU))
        tensors = [*(t for stage in stages for layer in stage for t in layer), *distance.weights]
        assert perceptual_bytes() == sum(t.numel() * 4 for t in tensors)
        _, peak = passed(vae, lambda: distance(forwards(latents).sample, images), is_mixed=is_mixed)
    plan = PartPlan(compute_bytes=2 if is_mixed else 0, trains="full", unreached=("encoder.", "quant_conv"))
    passes = passes_of(FAMILIES["sd"], shipped_configs("sd1"))
    sides = {"batch": 2, "width_px": 256, "height_px": 256, "gradients": "new"}
    found = passes.reconstruction_peak(plan, **sides, is_perceptual=True)
    assert sum(found) > 1.05 * sum(passes.reconstruction_peak(plan, **sides))
    assert sum(found) == pytest.approx(peak, rel=FACTOR)


@pytest.mark.full
@pytest.mark.parametrize(
    "mode", [pytest.param("off", marks=pytest.mark.full), "block", pytest.param("whole", marks=pytest.mark.full)]
)
def test_consecutive_backprop_steps_need_the_estimated_memory(mode: str) -> None:
    """Each step's prediction goes into the next; the weights of all are the same."""
    case = Case("sd1", 512, 2, "adapter", BF16, True, mode)
    plans = {"text_encoder": PartPlan(), "vae": PartPlan(), "unet": case.plan}
    size: dict[str, Any] = {"batch": 2, "width_px": 512, "height_px": 512, "gradients": "new"}
    passes = passes_of(FAMILIES["sd"], shipped_configs("sd1"))
    for num_passes in (1, 2, 3) if mode == "off" else (2,):
        kept, peak = measured(case, num_passes=num_passes)
        activations, gradients, found = passes.consecutive_peak(plans, **size, num_passes=num_passes)
        assert found == pytest.approx(kept, rel=0.05, abs=4_000_000)
        assert activations + gradients == pytest.approx(peak, rel=FACTOR)
    alone = passes.training_peak(plans, **size)
    assert passes.consecutive_peak(plans, **size, num_passes=1)[:2] == alone


@pytest.mark.full
@pytest.mark.parametrize("mode", ["off", "block"])
def test_a_frozen_unet_keeps_activations_for_a_trained_text_encoder(mode: str) -> None:
    unet = meta_part("sd1", "unet").train()
    with FakeTensorMode():
        give_weights(unet, dtype=BF16, adapter_dtype=F32, learns=lambda name: False)
        forward = checkpointed(unet, "denoiser", mode)
        states = torch.empty(1, 77, 768, dtype=BF16, requires_grad=True)
        noisy, timestep = torch.empty(1, 4, 64, 64, dtype=BF16), torch.empty(1, dtype=torch.long)
        kept, peak = passed(unet, lambda: forward(noisy, timestep, states, return_dict=False)[0], is_mixed=True)
    estimated_kept, estimated = replayed(
        "sd1", "unet", PartPlan(2, 2, checkpointing=mode), 1, 512, has_trained_text=True
    )
    assert estimated_kept == pytest.approx(kept, rel=0.05, abs=4_000_000)
    assert estimated == pytest.approx(peak, rel=FACTOR)


@pytest.mark.daily(1)
@pytest.mark.parametrize("model", ["sd1", "sdxl"])
def test_a_denoising_step_of_a_sample_needs_the_estimated_memory(model: str) -> None:
    case = Case(model, 1024, 2, "nothing", BF16, True, "off")
    with torch.no_grad():
        peak = looked(case)
    passes = passes_of(FAMILIES[FAMILY[model]], shipped_configs(model))
    found = passes.inference_peak("unet", case.plan, batch=2, width_px=1024, height_px=1024)
    assert found == pytest.approx(peak, rel=FACTOR)


def looked(case: Case) -> int:
    """The most that is in use in a pass without gradients."""
    unet = meta_part(case.model, "unet")
    config = shipped_configs(case.model)["unet"]
    with FakeTensorMode():
        give_weights(unet, dtype=case.dtype, adapter_dtype=F32, learns=lambda name: False)
        noisy = torch.empty(case.batch, 4, *latents(case), dtype=case.dtype)
        states = torch.empty(case.batch, 77, config["cross_attention_dim"], dtype=case.dtype)
        more: Any = None
        if case.model == "sdxl":
            more = {"text_embeds": torch.empty(case.batch, 1280, dtype=BF16), "time_ids": torch.empty(case.batch, 6)}
        with LiveBytes() as live, cuda_autocast(BF16):
            unet(noisy, torch.empty(case.batch, dtype=torch.long), states, added_cond_kwargs=more)
    return live.peak


# -- how a plan bends it


def test_offloaded_activations_are_not_on_the_device() -> None:
    plan = Case("sd1", 512, 1, "adapter", BF16, True, "block").plan
    passes = passes_of(FAMILIES["sd"], shipped_configs("sd1"))
    plans = {"unet": plan, "text_encoder": PartPlan(), "vae": PartPlan()}
    size = {"batch": 1, "width_px": 512, "height_px": 512, "gradients": "new"}
    kept_here, _ = passes.training_peak(plans, **size)
    elsewhere, _ = passes.training_peak({**plans, "unet": replace(plan, offloads=True)}, **size)
    assert elsewhere < kept_here


def test_gradients_of_earlier_batches_are_counted() -> None:
    plan = Case("sd1", 512, 1, "full", F32, False, "off").plan
    passes = passes_of(FAMILIES["sd"], shipped_configs("sd1"))
    plans = {"unet": plan, "text_encoder": PartPlan(), "vae": PartPlan()}
    size = {"batch": 1, "width_px": 512, "height_px": 512}
    once = sum(passes.training_peak(plans, **size, gradients="new"))
    again = sum(passes.training_peak(plans, **size, gradients="accumulated"))
    num_weights = count(passes.weights("unet", plan).shapes.values())
    assert once < again <= once + 4 * num_weights


# -- the disk space of a run


@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_a_run_needs_the_estimated_disk_space(trains: str, any_model: Path, images: Path, tmp_path: Path) -> None:
    config = small_config(
        tmp_path,
        model=any_model,
        images=images,
        training={"trains": trains, "epochs": 1, "ema": {"mode": "temp_device"}},
        parts={"text_encoder": {"train": False}, "text_encoder_2": {"train": False}},
        output={"dtype": "float32"},
    )
    training = datasets_of(config).training
    captions = {c for e in training.examples for c in e.image.captions}
    need = disk_need(budget_of_run(config, training.bucket_counts), training.bucket_counts, num_captions=len(captions))
    assert need is not None
    finished = run(config).finished
    held = [load_file(f) for f in Path(finished.backup_path).glob("*.safetensors")]
    assert need.backup_bytes == pytest.approx(sum(t.nbytes for f in held for t in f.values()), rel=0.02)
    result = load_file(config.output.destination)
    assert need.result_bytes == pytest.approx(sum(t.nbytes for t in result.values()), rel=0.02)
    for name, estimated in (("latents", need.latents_bytes), ("text", need.text_bytes)):
        sizes = [f.stat().st_size for f in (Path(config.general.cache_dir) / name).rglob("*.safetensors")]
        assert sum(sizes) <= estimated <= sum(sizes) + 1024 * len(sizes)


def test_16_bit_weights_update_in_slices_and_a_fused_pass_keeps_no_gradients() -> None:
    """A fine-tune of SDXL's UNet in bfloat16: the step's float32 is that of a slice, not of 2.6 billion weights."""
    passes = passes_of(FAMILIES["sdxl"], shipped_configs("sdxl"))
    tuned = PartPlan(weight_bytes=2, compute_bytes=2, trains="full", checkpointing="block")
    rest = dict.fromkeys(("text_encoder", "text_encoder_2", "vae"), PartPlan(weight_bytes=2))
    plain = RunPlan(
        plans={"unet": tuned, **rest},
        on_device={"training": frozenset({"unet"})},
        sizes=((1024, 1024),),
        batch_size=1,
        accumulates=False,
        optimizer=Adafactor(),
        has_master_weights=False,
        average="off",
        encodes_in_training=False,
    )
    num_weights = count(passes.weights("unet", tuned).shapes.values())
    peak, fused = estimate(passes, plain).peak, estimate(passes, replace(plain, is_fused=True)).peak
    assert dict(peak.parts)["gradients"] == 2 * num_weights
    assert dict(peak.parts)["optimizer workspace"] < 1e9
    assert 11e9 < peak.total_bytes < 13.5e9
    assert dict(fused.parts)["gradients"] < 100_000_000
    assert fused.total_bytes < peak.total_bytes - 0.7 * 2 * num_weights
    prior = estimate(passes, replace(plain, has_originals=True)).peak
    assert prior.total_bytes - peak.total_bytes == dict(prior.parts)["original weights"] == 2 * num_weights
    in_float16 = replace(plain, has_master_weights=True, scales_loss=True)
    assert dict(estimate(passes, in_float16).peak.parts)["gradients"] == 4 * num_weights
