"""Adapters on quantized parts: with every way of saving memory, every adapter, and in whole runs."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from modules.adapters.loha import Loha
from modules.adapters.lokr import Lokr
from modules.adapters.lora import Lora
from modules.adapters.oft import Oft
from modules.adapters.protocol import Adapter, kind_of, target_layers
from modules.adapters.registry import ADAPTERS
from modules.config.quantized_parts import quantized_parts
from modules.config.rules import problems_of
from modules.config.sections.model import Part
from modules.estimate.architecture import architecture_of
from modules.families.parts.part_classes import UNET
from modules.families.protocol import ModelFamily, PartMemory
from modules.memory import checkpointing
from modules.memory.checkpointing import offloaded_weights
from modules.memory.guard import DeviceGuard
from modules.memory.part_plan import PartPlan
from modules.quantization.linear import QuantizedLinear
from modules.quantization.packing import NF4_BLOCKS
from modules.quantization.registry import COMPUTED, FORMATS, ChosenFormat, Residual
from modules.settings.edit import records_of
from modules.settings.layer_filter import EVERYTHING, LayerFilter
from modules.system import hardware
from modules.system.devices import CPU, Device
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.gguf_files import write_unet
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import assert_equal_tensors, run
from tests.training.test_checkpointing import predicted, trained_parts
from tests.training.test_compile import One, compilation
from tests.training.test_layer_offload import placed
from trainer.events import BackupSaved
from trainer.preflight.devices import problems_of_devices
from trainer.preflight.passes import passes_of
from trainer.run.machine import machine_of
from trainer.run.model import encoder_identities
from trainer.run.reading import load_family, quantize_parts

TEMP = Device("cpu:1")
SETTINGS = {
    "lora": Lora(rank=2),
    "pissa": Lora(rank=2, init="pissa"),
    "dora": Lora(rank=2, decompose=True),
    "dora of inputs": Lora(rank=2, decompose=True, decompose_output_axis=False),
    "lokr": Lokr(rank=1, decompose=True),
    "loha": Loha(rank=1, decompose=True),
    "oft": Oft(block_size=4, rescale=True),
    "oft of inputs": Oft(block_size=4, rotates="inputs"),
}
RESIDUAL = " with a residual"
NAMES = [*FORMATS, *(f"{name}{RESIDUAL}" for name in COMPUTED)]


def daily(*names: str) -> list[Any]:
    """Return all formats, with and without a residual, of which only `names` are tested daily."""
    return [name if name in names else pytest.param(name, marks=pytest.mark.full) for name in NAMES]


@pytest.fixture(autouse=True)
def nothing_left_compiled() -> Iterator[None]:
    yield
    torch.compiler.reset()


def quantized(model: Path, name: str) -> ModelFamily:
    """Return a model with quantized parts; of those of a GGUF file only the UNet is in one."""
    form = FORMATS[name.removesuffix(RESIDUAL)]
    residual = Residual(4, "bfloat16") if name.endswith(RESIDUAL) else None
    if form.is_stored:
        return with_gguf(model, form.name)
    family: ModelFamily = load_tiny(model)
    chosen = ChosenFormat(form, EVERYTHING, residual)
    quantize_parts(family, {part: chosen for part in trained_parts(family)})
    return family


def with_gguf(model: Path, dtype: str) -> ModelFamily:
    """Return a model with the UNet of a GGUF file and text encoders in int8."""
    family = load_tiny(model)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "unet.gguf"
        write_unet(file, model, kind="Q4_1")
        config = small_config(Path(folder), model=model, images=model)
        parts = {name: {"dtype": "int8"} for name in family.spec.names_of("text_encoder")}
        unet = {"dtype": dtype, "file": str(file)}
        config = laid_over(config, {"model": {"family": family.spec.name}, "parts": {**parts, "unet": unet}})
        return load_family(config.model, config.part, quantized=quantized_parts(config))


def unquantized(family: ModelFamily) -> ModelFamily:
    """Put plain layers with the weights of the quantized ones in their place."""
    for part in family.parts.values():
        for path, layer in list(part.module.named_modules()):
            if isinstance(layer, QuantizedLinear):
                plain = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None)
                plain.weight = nn.Parameter(layer.weight.detach().clone(), requires_grad=False)
                plain.bias = layer.bias  # type: ignore[assignment]
                parent, _, attribute = path.rpartition(".")
                setattr(part.module.get_submodule(parent), attribute, plain)
    return family


def adapted(family: ModelFamily, settings: Any) -> list[Adapter]:
    """Put an adapter on every part that does something: no weight of it is zero."""
    generator, adapters = torch.Generator().manual_seed(1), []
    for name in trained_parts(family):
        part = family.parts[name]
        targets = target_layers(part.module, part.spec.role, layers=EVERYTHING, reaches=part.reaches)
        adapter = kind_of(ADAPTERS[settings.name]).attach(name, part.module, targets, settings, seed=3)
        for parameter in adapter.parameters().values():
            parameter.data += torch.randn(parameter.shape, generator=generator) * 0.05
        part.module.train()
        adapters.append(adapter)
    return adapters


def gradients(family: ModelFamily, adapters: list[Adapter], **options: Any) -> dict[str, torch.Tensor]:
    parameters = {n: p for a in adapters for n, p in a.parameters().items()}
    for parameter in parameters.values():
        parameter.grad = None
    predicted(family, **options).backward()
    found = {n: p.grad for n, p in parameters.items()}
    assert all(g is not None for g in found.values())
    return {n: g.clone() for n, g in found.items() if g is not None}


@functools.cache
def with_lora(model: Path, name: str) -> tuple[ModelFamily, list[Adapter], dict[str, torch.Tensor]]:
    family = quantized(model, name)
    adapters = adapted(family, SETTINGS["lora"])
    return family, adapters, gradients(family, adapters)


@pytest.mark.daily(2)
@pytest.mark.parametrize("kind", SETTINGS)
def test_every_adapter_trains_as_beside_plain_layers_with_the_same_weights(tiny_sd: Path, kind: str) -> None:
    family, plain = quantized(tiny_sd, "nfloat4"), unquantized(quantized(tiny_sd, "nfloat4"))
    adapters, others = adapted(family, SETTINGS[kind]), adapted(plain, SETTINGS[kind])
    expected = gradients(plain, others)
    for name, gradient in gradients(family, adapters).items():
        assert torch.allclose(gradient, expected[name], rtol=1e-3, atol=1e-6 + 1e-4 * expected[name].abs().max()), name
    for adapter, other in zip(adapters, others, strict=True):  # what is written to files
        with adapter.disabled(), other.disabled():
            assert torch.allclose(predicted(family), predicted(plain), rtol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("name", daily("nfloat4", "gguf_a8_int"))
@pytest.mark.parametrize("mode", ["block", "whole"])
def test_checkpointed_gradients_are_the_same_bits(tiny_sdxl: Path, name: str, mode: Any) -> None:
    family, adapters, plain = with_lora(tiny_sdxl, name)
    for offloads in (False, True):
        memory = PartMemory(mode, offload_activations=offloads)
        family.set_memory(dict.fromkeys(trained_parts(family), memory), train_device=CPU, temp_device=TEMP)
        assert_equal_tensors(gradients(family, adapters), plain)
    family.set_memory({}, train_device=CPU, temp_device=TEMP)


@pytest.mark.daily(3)
@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("name", daily(f"nfloat4{RESIDUAL}"))
def test_products_that_selective_checkpointing_keeps_are_not_changed(
    tiny_sd: Path, name: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch refuses a kept result that was changed in place: the low-rank product was added so."""
    monkeypatch.setattr(checkpointing, "MIN_KEPT_LENGTH", 1)
    family = quantized(tiny_sd, name)
    adapters = adapted(family, SETTINGS[kind])
    plain = gradients(family, adapters)
    memory = PartMemory("selective")
    family.set_memory(dict.fromkeys(trained_parts(family), memory), train_device=CPU, temp_device=TEMP)
    assert_equal_tensors(gradients(family, adapters), plain)


@pytest.mark.parametrize("name", daily("gguf", f"int8_w8a8{RESIDUAL}"))
def test_packed_weights_are_offloaded_and_fetched(tiny_sd: Path, name: str) -> None:
    family = quantized(tiny_sd, name)
    adapters = adapted(family, SETTINGS["lora"])
    plain = gradients(family, adapters)
    own = {n.removeprefix("unet.") for n in adapters[0].parameters() | adapters[-1].parameters()}
    memory = PartMemory("block", offload_fraction=1.0, resident=frozenset(own))
    family.set_memory({"unet": memory}, train_device=CPU, temp_device=TEMP)
    guard = DeviceGuard()
    with guard:
        placement = placed(family, guard)
        assert_equal_tensors(gradients(family, adapters), plain)
        placement.close()
    offloaded = {id(weight) for weight in offloaded_weights(family.parts["unet"].module)}
    layers = [m for m in family.parts["unet"].module.modules() if isinstance(m, QuantizedLinear)]
    assert any(id(layer.packed) in offloaded and id(layer.scales) in offloaded for layer in layers)


@pytest.mark.full
@pytest.mark.parametrize("name", daily(f"nfloat4{RESIDUAL}"))
def test_compiled_blocks_compute_the_same(tiny_sd: Path, name: str) -> None:
    family = quantized(tiny_sd, name)
    adapters = adapted(family, SETTINGS["lora"])
    plain = gradients(family, adapters)
    for mode in ("off", "block"):
        compiled = compilation(One)
        family.set_memory({"unet": PartMemory(mode, compilation=compiled)}, train_device=CPU, temp_device=TEMP)
        found = gradients(family, adapters)
        assert not compiled.failure
        assert compiled.counts.num_blocks == 1
        for key, gradient in found.items():
            assert torch.allclose(gradient, plain[key], rtol=1e-3, atol=1e-7), key
        compiled.close()


def test_no_weight_is_unpacked_to_attach_a_lora(tiny_sd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """peft reads each weight some twenty times, only for its shape and dtype."""
    family, unpacked = quantized(tiny_sd, "nfloat4"), []
    monkeypatch.setattr(type(NF4_BLOCKS), "unpack", lambda *arguments: unpacked.append(arguments))
    adapters = adapted(family, SETTINGS["lora"])
    assert unpacked == []
    assert all(p.dtype == torch.float32 for a in adapters for p in a.parameters().values())


# -- whole runs

SIZES = [(64, 64)] * 5
WHOLE: dict[str, Any] = {
    "training": {"epochs": 2, "batch_size": 2, "precision": "bfloat16", "ema": {"mode": "train_device", "decay": 0.9}},
    "parts": {
        "unet": {"dtype": "nfloat4", "checkpointing": "block"},
        "text_encoder": {"dtype": "int8_w8a8", "train": False},
    },
    "quantization": {"svd_dtype": "bfloat16", "svd_rank": 4},
    "backup": {"every": {"n": 2, "unit": "step"}, "keep": 0},
}


@pytest.mark.full
def test_a_resumed_run_on_quantized_parts_ends_bit_for_bit_the_same(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=SIZES)
    config = small_config(tmp_path, model=tiny_sd, images=images, **WHOLE)
    whole = run(config)
    found = load_file(Path(whole.finished.model_path))
    first = next(e.path for e in whole.of(BackupSaved))
    assert list((tmp_path / "cache" / "quantization").rglob("*.safetensors"))
    resumed = run(config, resume_from=Path(first))
    assert_equal_tensors(resumed.weights, whole.weights)
    plain = run(laid_over(config, {"parts": {"unet": {"dtype": "bfloat16"}, "text_encoder": {"dtype": "bfloat16"}}}))
    other = load_file(Path(plain.finished.model_path))
    assert {n: (t.shape, t.dtype) for n, t in found.items()} == {n: (t.shape, t.dtype) for n, t in other.items()}
    assert any(not torch.equal(found[n], other[n]) for n in found), "the base is another"


@pytest.mark.full
def test_the_caches_of_another_format_are_not_used(tiny_sd: Path, tmp_path: Path) -> None:
    """int8 with and without rounded inputs has the same weights."""
    config = small_config(tmp_path, model=tiny_sd, images=tmp_path, **WHOLE)
    machine = machine_of(config.general, config.training.precision)
    dtypes = ("bfloat16", *COMPUTED)
    found = [
        encoder_identities(laid_over(config, {"parts": {"text_encoder": {"dtype": dtype}}}), machine)
        for dtype in dtypes
    ]
    assert len({identity.captions for identity in found}) == len(dtypes)
    assert len({identity.images for identity in found}) == 1
    residuals = [{"svd_dtype": "none"}, {"svd_dtype": "float32"}, {"svd_dtype": "float32", "svd_rank": 2}]
    others = [encoder_identities(laid_over(config, {"quantization": q}), machine).captions for q in residuals]
    assert len({identity.captions for identity in found} | set(others)) == len(dtypes) + 3


def test_the_estimate_counts_the_bytes_of_a_quantized_part(tiny_sd: Path) -> None:
    architecture = architecture_of(str(tiny_sd), "sd")
    assert architecture is not None
    for name in (*COMPUTED, f"nfloat4{RESIDUAL}"):
        family = quantized(tiny_sd, name)
        passes = passes_of(family.spec, architecture.configs)
        for part in trained_parts(family):
            residual = Residual(4, "bfloat16") if name.endswith(RESIDUAL) else None
            chosen = ChosenFormat(FORMATS[name.removesuffix(RESIDUAL)], EVERYTHING, residual)
            plan = PartPlan(quantized=chosen)
            own = sum(p.nbytes for p in family.parts[part].module.parameters())
            assert passes.weights(part, plan).num_bytes(plan) == own, (name, part)


@pytest.mark.parametrize(
    "name", [n if n in ("nfloat4", "int8") else pytest.param(n, marks=pytest.mark.full) for n in COMPUTED]
)
def test_a_residual_halves_the_error_of_the_output(tiny_sd: Path, name: str) -> None:
    exact = output(with_large_singular_values(load_tiny(tiny_sd)))
    errors = []
    for residual in (None, Residual(4, "bfloat16")):
        family = with_large_singular_values(load_tiny(tiny_sd))
        quantize_parts(family, {"unet": ChosenFormat(FORMATS[name], EVERYTHING, residual)})
        errors.append(float((output(family) - exact).norm()))
    assert errors[1] < 0.5 * errors[0]


@torch.no_grad()
def with_large_singular_values(family: ModelFamily) -> ModelFamily:
    """Give the layers of a UNet the spectrum of trained ones: the weights of a new one are merely random."""
    for layer in family.parts["unet"].module.modules():
        if type(layer) is nn.Linear:
            left, sizes, right = torch.linalg.svd(layer.weight, full_matrices=False)
            layer.weight.copy_((left * sizes / torch.arange(1, len(sizes) + 1) ** 1.5) @ right)
    return family


@torch.no_grad()
def output(family: ModelFamily) -> torch.Tensor:
    """What a model predicts for a fixed input at several timesteps."""
    noisy = torch.randn(4, 4, 16, 16, generator=torch.Generator().manual_seed(0))
    return family.predict(noisy, torch.tensor([50, 300, 600, 900]), family.encode_prompts(["a red disc"] * 4))


def test_an_embedding_trains_through_a_quantized_model(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["a <zog>"])
    changes = {**WHOLE, "training": {**WHOLE["training"], "trains": "embedding", "epochs": 1}, "backup": {}}
    words = {"words": [{"placeholder": "<zog>", "initial_text": "disc"}], "learning_rate": 0.01}
    config = small_config(tmp_path, model=tiny_sd, images=images, **changes, embeddings=words)
    assert [p for p in problems_of(config) if p.severity == "error"] == []
    found = run(config)
    assert found.finished.outcome == "finished", found.ending
    [(name, row)] = found.weights.items()
    family: ModelFamily = load_tiny(tiny_sd)
    start = family.token_ids("text_encoder", "disc")[0]  # type: ignore[attr-defined]
    own = family.parts["text_encoder"].module.get_input_embeddings().weight[start]  # type: ignore[operator]
    assert name == "embedding:<zog>.text_encoder"
    assert not torch.equal(row[0].float(), own.detach())
    assert torch.isfinite(row).all()


def test_a_vae_trains_beside_quantized_parts_that_are_not_read(tiny_sd: Path, tmp_path: Path) -> None:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2)
    changes = {**WHOLE, "training": {**WHOLE["training"], "trains": "vae", "epochs": 1}, "backup": {}}
    config = small_config(tmp_path, model=tiny_sd, images=images, **changes)
    assert [p for p in problems_of(config) if p.severity == "error"] == []
    found = run(config)
    assert found.finished.outcome == "finished", found.ending
    assert found.weights
    assert all(name.startswith("vae.") for name in found.weights)
    assert not (tmp_path / "cache" / "quantization").exists()


# -- what is refused


def problems(folder: Path, **changes: Any) -> dict[str, str]:
    config = small_config(folder, model=folder, images=folder, **changes)
    return {p.path: p.message for p in problems_of(config) if p.severity == "error"}


def test_what_cannot_be_quantized_is_refused_by_name(tmp_path: Path) -> None:
    both = {"unet": {"dtype": "nfloat4"}, "text_encoder": {"dtype": "int8", "train": False}}
    assert problems(tmp_path, parts=both) == {}
    found = problems(tmp_path, parts=both, training={"trains": "full"})
    assert found == {
        "parts.unet.dtype": "UNet is quantized to nfloat4 in a fine-tune: quantized weights cannot be trained.",
        "parts.text_encoder.dtype": "Text encoder is quantized to int8 in a fine-tune: a fine-tune saves the whole "
        "model.",
    }
    assert problems(tmp_path, parts={"vae": {"dtype": "int8"}}) == {
        "parts.vae.dtype": "VAE cannot be quantized to int8: it consists of convolutions."
    }


def test_layer_names_that_are_missing_or_invalid_are_refused(tmp_path: Path) -> None:
    parts = {"unet": {"dtype": "nfloat4"}}
    for names in ({"layers": "custom"}, {"layers": "custom", "custom_layers": "a(", "layers_regex": True}):
        assert list(problems(tmp_path, parts=parts, quantization=names)) == ["quantization.custom_layers"]
        assert problems(tmp_path, quantization=names) == {}


def test_a_filter_that_takes_no_layer_is_refused(tiny_sd: Path) -> None:
    family: ModelFamily = load_tiny(tiny_sd)
    with pytest.raises(DarkroomError, match="none of its layers is quantized"):
        quantize_parts(
            family,
            {"unet": ChosenFormat(FORMATS["int8"], LayerFilter(("time_embedding",)), never=UNET.never_quantized)},
        )


def test_a_device_without_a_format_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware.Hardware, "kind_of", lambda self, name: "mps")
    config = small_config(tmp_path, model=tmp_path, images=tmp_path, parts={"unet": {"dtype": "float8"}})
    [problem] = [p for p in problems_of_devices(config) if p.path == "parts.unet.dtype"]
    assert problem.message == "The training device (mps) does not support float8."
    fits = laid_over(config, {"parts": {"unet": {"dtype": "nfloat4"}}})
    assert [p for p in problems_of_devices(fits) if p.path == "parts.unet.dtype"] == []


def test_every_format_is_a_weight_dtype_and_none_is_missing() -> None:
    [record] = [r for r in records_of(Part) if r.path.endswith("dtype")]
    choices = record.choices
    assert not record.setting.not_yet_choices
    assert {n: choices[n] for n in FORMATS} == {f.name: f.label for f in FORMATS.values()}
    assert choices.keys() - FORMATS.keys() == {"float32", "bfloat16", "float16"}
