"""A UNet in a GGUF file as the base of a run: what is read, what is packed, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from benchmarks.gguf_file import write_gguf
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.architecture import architecture_of
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.protocol import ModelFamily
from modules.families.registry import FAMILIES
from modules.formats.gguf_header import READABLE, BlockType, block_type, read_gguf_header
from modules.formats.gguf_tensors import gguf_tensors, unpack_blocks
from modules.formats.headers import UnreadableFileError, read_header
from modules.formats.stored_tensors import read_stored
from modules.memory.part_plan import PartPlan
from modules.quantization.linear import QuantizedLinear
from modules.quantization.registry import FORMATS
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over, small_config
from tests.builders.gguf_files import write_hollow_unet, write_unet
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.pretended_gpu import CAN_PRETEND, pretended_gpu
from tests.builders.runs import run
from tests.builders.single_files import write_tiny
from trainer.preflight import check
from trainer.preflight.part_files import problems_of_part_files, with_stored_bytes
from trainer.preflight.passes import passes_of
from trainer.preflight.run_budget import memory_estimate
from trainer.run.reading import load_family

BF16 = {"precision": "bfloat16"}
PLAIN = {"parts": {"unet": {"dtype": "float32"}}}
STORED = [name for name, form in FORMATS.items() if form.is_stored]
KINDS = sorted(k.name for k, (block, _) in gguf.GGML_QUANT_SIZES.items() if block > 1 and k.name in READABLE)


# -- the format


@pytest.mark.parametrize("name", KINDS)
def test_blocks_are_unpacked_to_the_values_of_the_package_gguf(name: str) -> None:
    kind = block_type(gguf.GGMLQuantizationType[name])
    assert kind is not None
    raw = torch.randint(0, 256, (40, kind.num_bytes), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    for place in _scales(kind):  # random bytes are valid but for the scales, which must be finite
        raw[:, place : place + 2] = torch.tensor(list(struct.pack("<e", 0.01)), dtype=torch.uint8)
    found = unpack_blocks(raw.flatten(), kind, torch.float32)
    theirs = gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType[name])
    assert np.array_equal(found.numpy(), theirs.flatten())


@pytest.mark.skipif(not CAN_PRETEND, reason="needs torch's build for CPUs on Linux")
def test_the_host_never_waits_for_unpacked_blocks() -> None:
    with pretended_gpu() as counts:
        for name in KINDS:
            kind = block_type(gguf.GGMLQuantizationType[name])
            assert kind is not None
            packed = torch.zeros(2 * kind.num_bytes, dtype=torch.uint8, device="cuda")
            weights = unpack_blocks(packed, kind, torch.bfloat16)
            assert (weights.device.type, len(weights)) == ("cuda", 2 * kind.block)
    assert counts.num_operations
    assert not counts.num_waits


def _scales(kind: BlockType) -> tuple[int, ...]:
    """The places of the float16 numbers in a block."""
    end = kind.num_bytes - 2
    last = {"Q6_K": (end,), "Q3_K": (end,), "Q2_K": (end - 2, end)}
    two = ("Q4_1", "Q5_1", "Q4_K", "Q5_K")
    return last.get(kind.name, (0, 2) if kind.name in two else (0,))


def test_tensors_are_read_with_their_shapes_and_metadata(tmp_path: Path) -> None:
    tensors = {"flat.weight": torch.randn(6, 80), "conv.weight": torch.randn(8, 4, 3, 3), "bias": torch.randn(7)}
    write_gguf(tmp_path / "x.gguf", tensors)
    found, metadata = gguf_tensors(tmp_path / "x.gguf")
    assert metadata["general.architecture"] == "sdxl"
    for name, tensor in tensors.items():
        read = found[name].make()
        assert read.shape == found[name].shape == tensor.shape
        assert (read - tensor).norm() / tensor.norm() < (0.01 if tensor.ndim > 1 else 1e-7)
    header = read_gguf_header(tmp_path / "x.gguf")
    assert header.tensors["flat.weight"].type.name == "Q8_0"
    assert read_stored(tmp_path / "x.gguf")[0].keys() == tensors.keys()


@pytest.mark.parametrize("length", [4, 8, 23, 60, 200, -40])
def test_a_truncated_file_is_reported_as_such(length: int, tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    write_gguf(path, {"a.weight": torch.randn(6, 64)})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(UnreadableFileError) as error:
        read_gguf_header(path)
    assert error.value.defect == "truncated"
    assert identify(path).kind == "broken"


def test_damaged_headers_are_refused_at_once(tmp_path: Path) -> None:
    def header(num_tensors: int, num_pairs: int, rest: bytes = b"", version: int = 3) -> bytes:
        return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_pairs) + rest

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    endless = text(b"a") + struct.pack("<IIQ", 9, 0, 2**62)
    tensor = text(b"w") + struct.pack("<I", 1)
    for content in (
        header(2**60, 0),
        header(0, 2**60),
        header(0, 1, endless + b"\x00" * 100),
        header(0, 1, struct.pack("<Q", 2**62)),
        header(0, 1, text(b"a") + struct.pack("<I", 99)),
        header(0, 1, text(b"comfy.gguf.orig_shape.w") + struct.pack("<If", 6, 1.0)),
        header(1, 0, text(b"w") + struct.pack("<I", 2**31)),
        header(1, 0, tensor + struct.pack("<QIQ", 33, 8, 0)),
        header(1, 0, tensor + struct.pack("<QIQ", 2**60, 0, 2**62)),
        header(1, 0, tensor + struct.pack("<QIQ", 4, 77, 0)),
        header(2, 0, (tensor + struct.pack("<QIQ", 4, 0, 0)) * 2 + b"\x00" * 99),
        header(0, 0, version=9),
    ):
        (tmp_path / "x.gguf").write_bytes(content)
        assert identify(tmp_path / "x.gguf").kind == "broken"


# -- the UNet of a model


def with_unet(folder: Path, model: Path, file: Path | None, dtype: str = "gguf", **changes: Any) -> Any:
    config = small_config(folder, model=model, images=folder)
    unet = {"dtype": dtype, "file": "" if file is None else str(file)}
    changes = {"parts": {"unet": unet}, **changes}
    return laid_over(config, changes)


def loaded(config: Any) -> ModelFamily:
    return load_family(config.model, config.part, quantized=quantized_parts(config))


def quantized_names(family: ModelFamily) -> set[str]:
    unet = family.parts["unet"].module
    return {name for name, layer in unet.named_modules() if isinstance(layer, QuantizedLinear)}


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("tiny_sd", "original"),
        ("tiny_sdxl", "diffusers"),
        *(pytest.param(m, n, marks=pytest.mark.full) for m, n in (("tiny_sd", "diffusers"), ("tiny_sdxl", "original"))),
        pytest.param("tiny_sdxl", "prefixed", marks=pytest.mark.full),
    ],
)
def test_a_unet_is_read_packed_and_unpacked(
    model: str, tmp_path: Path, layout: str, request: pytest.FixtureRequest
) -> None:
    any_model: Path = request.getfixturevalue(model)
    file = tmp_path / "unet.gguf"
    exact = write_unet(file, any_model, layout=layout)
    config = laid_over(with_unet(tmp_path, any_model, file), {"model": {"family": load_tiny(any_model).spec.name}})
    packed, plain = loaded(config), loaded(laid_over(config, {"parts": {"unet": {"dtype": "float32"}}}))
    names = quantized_names(packed)
    assert names
    assert not quantized_names(plain)
    unpacked = plain.parts["unet"].module.state_dict()
    for name, weight in exact.items():
        assert (unpacked[name] - weight).norm() <= 0.01 * weight.norm()
    for name, layer in packed.parts["unet"].module.named_modules():
        if name in names:
            assert torch.equal(layer.weight, unpacked[f"{name}.weight"])
    assert not any(p.is_meta for p in packed.parts["unet"].module.parameters())


def test_layers_outside_of_the_filter_are_unpacked(tiny_sd: Path, tmp_path: Path) -> None:
    file = tmp_path / "unet.gguf"
    write_unet(file, tiny_sd)
    layers = {"layers": "custom", "custom_layers": "ff"}
    config = with_unet(tmp_path, tiny_sd, file, quantization=layers, training={"precision": "bfloat16"})
    family = loaded(config)
    assert quantized_names(family)
    assert all(".ff." in name for name in quantized_names(family))
    assert {p.dtype for p in family.parts["unet"].module.parameters()} == {torch.bfloat16, torch.uint8, torch.float32}


def test_a_unet_of_safetensors_replaces_the_models_own(tiny_sd: Path, tmp_path: Path) -> None:
    state = {n: t + 1 for n, t in load_tiny(tiny_sd).parts["unet"].module.state_dict().items()}
    save_file(state, tmp_path / "unet.safetensors")
    config = with_unet(tmp_path, tiny_sd, tmp_path / "unet.safetensors", "float32")
    found = loaded(config).parts["unet"].module.state_dict()
    assert all(torch.equal(found[n], t) for n, t in state.items())
    assert "is not a GGUF file" in errors(laid_over(config, {"parts": {"unet": {"dtype": "gguf"}}}))["parts.unet.dtype"]


@pytest.mark.full
def test_a_whole_model_in_a_gguf_file_is_a_base_model(tmp_path: Path) -> None:
    """stable-diffusion.cpp writes such files."""
    write_tiny(tmp_path / "model.safetensors", "sd1")
    metadata = dict(read_header(tmp_path / "model.safetensors").metadata)
    tensors = load_file(tmp_path / "model.safetensors")
    write_gguf(tmp_path / "model.gguf", tensors, metadata=metadata)
    config = with_unet(tmp_path, tmp_path / "model.gguf", None)
    assert errors(config) == {}
    found = loaded(config)
    assert quantized_names(found)
    exact = loaded(laid_over(config, {"model": {"base_model": str(tmp_path / "model.safetensors")}, **PLAIN}))
    for name, part in found.parts.items():
        if name != "unet":
            other = exact.parts[name].module.state_dict()
            for key, weight in part.module.state_dict().items():
                assert (weight - other[key]).float().norm() <= 0.01 * other[key].float().norm()


def test_a_lora_trains_on_a_gguf_unet_and_the_estimate_knows_its_bytes(tiny_sd: Path, tmp_path: Path) -> None:
    file = tmp_path / "unet.gguf"
    write_unet(file, tiny_sd, kind="Q4_0")
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2)
    config = small_config(tmp_path, model=tiny_sd, images=images)
    config = laid_over(config, {"parts": {"unet": {"file": str(file), "dtype": "gguf_a8_int"}}})
    # The base model's own UNet is not needed.
    report = check(config)
    assert report.errors == []
    assert report.preview is not None
    found = run(config)
    assert found.finished.model_path
    architecture = architecture_of(str(tiny_sd), "sd")
    assert architecture is not None
    chosen = with_stored_bytes(
        config, config.family.denoiser, quantized_parts(config).formats["unet"], architecture.configs["unet"]
    )
    plan = PartPlan(quantized=chosen)
    own = sum(p.nbytes for p in loaded(config).parts["unet"].module.parameters())
    assert passes_of(FAMILIES["sd"], architecture.configs).weights("unet", plan).num_bytes(plan) == own


@pytest.mark.parametrize("name", STORED)
def test_every_gguf_dtype_computes_close_to_the_unpacked_weights(tiny_sd: Path, tmp_path: Path, name: str) -> None:
    from tests.training.test_checkpointing import predicted

    file = tmp_path / "unet.gguf"
    write_unet(file, tiny_sd)
    family = loaded(with_unet(tmp_path, tiny_sd, file, name))
    exact = predicted(loaded(with_unet(tmp_path, tiny_sd, file, "float32")))
    error = float((predicted(family) - exact).norm() / exact.norm())
    assert error < {"gguf": 1e-5, "gguf_a8_int": 0.03, "gguf_a8_float": 0.1}[name]
    assert (error == 0) == (name == "gguf") or error < 1e-6


# -- what is recognised, and what is refused


def test_a_gguf_unet_is_recognised(tiny_sdxl: Path, tmp_path: Path) -> None:
    write_unet(tmp_path / "unet.gguf", tiny_sdxl, kind="Q4_0")
    kind, loads = who_loads_file(tmp_path / "unet.gguf")
    assert (kind.kind, kind.facts["container"], kind.facts["dtype"]) == ("part", "gguf", "GGUF Q4_0")
    assert {x.program: x.complete for x in loads}["A1111"] is False


@pytest.mark.parametrize(("model", "label"), [("sd1", "Stable Diffusion 1.x"), ("sdxl", "Stable Diffusion XL")])
def test_a_published_unet_is_recognised_and_estimated(model: str, label: str, tmp_path: Path) -> None:
    file = tmp_path / "unet-Q4_K.gguf"
    write_hollow_unet(file, model)
    found = identify(file)
    assert (found.kind, found.model) == ("part", model)
    assert found.sentence == f"A {label} UNet alone with epsilon prediction, GGUF Q4_K."
    base = {
        "family": found.family,
        "base_model": "stabilityai/stable-diffusion-xl-base-1.0",
    }
    base |= {"base_model": "stable-diffusion-v1-5/stable-diffusion-v1-5"} if model == "sd1" else {}
    config = Config.model_validate(
        {"model": base, "parts": {"unet": {"dtype": "gguf", "file": str(file)}}, "training": BF16}
    )
    assert list(problems_of_part_files(config)) == []
    weights = []
    for own in (config, laid_over(config, {"parts": {"unet": {"dtype": "bfloat16"}}})):
        estimated = memory_estimate(own, {Size(512, 512): 4})
        assert estimated is not None
        weights.append(dict(estimated.phases[-1].parts)["weights"])
    # Linear layers have 9 instead of 32 bits for two weights; convolutions stay in 16 bits.
    assert 0.35 < weights[0] / weights[1] < 0.85
    write_hollow_unet(file, model, in_channels=9)
    [problem] = problems_of_part_files(config)
    assert "9" in problem.message
    assert "conv_in" in problem.message


def errors(config: Any) -> dict[str, str]:
    return {p.path: p.message for p in check(config).errors if p.path != "concepts.0.path"}


def test_files_that_do_not_fit_are_refused(tiny_sd: Path, tiny_sdxl: Path, tmp_path: Path) -> None:
    file = tmp_path / "unet.gguf"
    write_unet(file, tiny_sd)
    fits = with_unet(tmp_path, tiny_sd, file)
    assert errors(fits) == {}
    assert "no GGUF file is set" in errors(laid_over(fits, {"parts": {"unet": {"file": ""}}}))["parts.unet.dtype"]
    unpacked = check(laid_over(fits, {"parts": {"unet": {"dtype": "bfloat16"}}}))
    [note] = [p for p in unpacked.problems if "unpacked" in p.message]
    assert (note.path, note.severity) == ("parts.unet.dtype", "info")
    other = tmp_path / "other.gguf"
    write_unet(other, tiny_sdxl)
    assert list(errors(laid_over(fits, {"parts": {"unet": {"file": str(other)}}}))) == ["parts.unet.file"]
    missing = laid_over(fits, {"parts": {"unet": {"file": "nowhere.gguf"}}})
    assert "There is no file" in errors(missing)["parts.unet.file"]
    base = laid_over(fits, {"model": {"base_model": str(file)}, "parts": {"unet": {"file": ""}}})
    assert "not a complete model" in errors(base)["model.base_model"]


def test_missing_and_other_weights_are_refused(tiny_sd: Path, tmp_path: Path) -> None:
    file = tmp_path / "unet.gguf"
    state = write_unet(file, tiny_sd, layout="diffusers")
    config = with_unet(tmp_path, tiny_sd, file)
    for change, expected in (
        ({n: t for n, t in state.items() if n != "conv_in.bias"}, "lacks 1 of its weights"),
        ({**state, "conv_in.weight": torch.randn(32, 9, 3, 3)}, "other shapes"),
    ):
        write_gguf(file, change)
        assert expected in errors(config)["parts.unet.file"]
        with pytest.raises(DarkroomError, match="fit"):
            loaded(config)


def test_types_that_cannot_be_read_are_refused(tiny_sd: Path, tmp_path: Path) -> None:
    file = tmp_path / "unet.gguf"
    write_unet(file, tiny_sd)
    name = b"input_blocks.0.0.weight"
    content = bytearray(file.read_bytes())
    place = content.rindex(name, 0, content.rindex(b"out.2.weight")) + len(name)
    num_axes = struct.unpack_from("<I", content, place)[0]
    struct.pack_into("<I", content, place + 4 + 8 * num_axes, 9)  # Q8_1
    file.write_bytes(content)
    config = with_unet(tmp_path, tiny_sd, file)
    assert "Q8_1" in errors(config).get("parts.unet.file", "") or identify(file).kind == "broken"
    with pytest.raises(DarkroomError):
        loaded(config)


def test_an_encoder_without_a_gguf_file_cannot_be_gguf(tiny_sd: Path, tmp_path: Path) -> None:
    config = small_config(tmp_path, model=tiny_sd, images=tmp_path)
    found = errors(laid_over(config, {"parts": {"text_encoder": {"dtype": "gguf", "train": False}}}))
    assert "is GGUF, but no GGUF file is set" in found["parts.text_encoder.dtype"]
