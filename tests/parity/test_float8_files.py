"""Files in float8: they load in stock diffusers and here, and change little."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from modules.adapters.lora_layers import LoraAdapter, LoraShape, attach_lora
from modules.config.schema import Config
from modules.families.kinds.identify import identify
from modules.families.protocol import ModelFamily
from modules.formats.checkpoint_header import CheckpointHeader
from modules.formats.float8 import adapter_in_float8, matrices_in_float8
from modules.formats.lazy_tensors import lazy
from modules.formats.safetensors_io import write_safetensors
from modules.system.errors import DarkroomError
from tests.builders.configs import laid_over
from tests.builders.lora_keys import meta_parts
from tests.builders.pipelines import load_tiny, sample_in_diffusers, sample_with_ours, stock_pipeline
from tests.parity.test_lora_files_in_diffusers import PROMPT, exporter, weights
from trainer.__main__ import main
from trainer.export.exporter import SaveMoment
from trainer.export.model import ModelExporter

NOW = datetime(2026, 1, 2, 3, 4, 5)


def with_adapter(folder: Path, size: float) -> tuple[ModelFamily, LoraAdapter]:
    """A model with a LoRA on all layers of its UNet, whose up matrices have values of about `size`."""
    family = load_tiny(folder)
    unet = family.parts["unet"].module
    names = [n for n, m in unet.named_modules() if isinstance(m, torch.nn.Linear | torch.nn.Conv2d)]
    adapter = attach_lora("unet", unet, names, LoraShape(4, 6.0, 0.0, torch.float32), seed=5)
    generator = torch.Generator().manual_seed(1)
    for key, parameter in adapter.parameters().items():
        if "lora_B" in key:
            parameter.data = torch.randn(parameter.shape, generator=generator) * size
    return family, adapter


def save(path: Path, family: ModelFamily, adapter: LoraAdapter, dtype: str) -> dict[str, torch.Tensor]:
    exporter(family, [adapter], dtype=dtype).save(path, weights([adapter]), SaveMoment(NOW, step=1, epoch=1))
    return load_file(path)


def test_a_lora_of_small_weights_keeps_its_change(tmp_path: Path, tiny_sd: Path) -> None:
    """Without the scaling, weights of about 0.0005 would all be 0 in float8."""
    family, adapter = with_adapter(tiny_sd, 5e-4)
    small, exact = (save(tmp_path / f"{d}.safetensors", family, adapter, d) for d in ("float8", "float32"))
    assert {t.dtype for n, t in small.items() if "lora_" in n.split(".", 1)[1]} == {torch.float8_e4m3fn}
    for layer in {n.split(".")[0] for n in exact}:
        changes = [
            f[f"{layer}.lora_up.weight"].float().flatten(1)
            @ f[f"{layer}.lora_down.weight"].float().flatten(1)
            * f[f"{layer}.alpha"].float()
            for f in (small, exact)
        ]
        assert torch.linalg.norm(changes[0] - changes[1]) < 0.06 * torch.linalg.norm(changes[1])
    assert identify(tmp_path / "float8.safetensors").family == family.spec.name


def test_a_float8_lora_is_converted_there_and_back(tmp_path: Path, tiny_sd: Path) -> None:
    family, adapter = with_adapter(tiny_sd, 5e-4)
    before = save(tmp_path / "a.safetensors", family, adapter, "float8")
    for source, out, form in (("a", "b", "peft"), ("b", "c", "kohya"), ("a", "d", "kohya")):
        names = [str(tmp_path / f"{name}.safetensors") for name in (source, out)]
        assert main(["convert", *names, "--to", form]) == 0
    for name in ("c", "d"):
        after = load_file(tmp_path / f"{name}.safetensors")
        assert after.keys() == before.keys()
        assert all(torch.equal(after[key].float(), before[key].float()) for key in before)


def test_stock_diffusers_samples_nearly_the_same_image_with_a_float8_lora(tmp_path: Path, tiny_sd: Path) -> None:
    family, adapter = with_adapter(tiny_sd, 0.2)
    save(tmp_path / "a.safetensors", family, adapter, "float8")
    ours = sample_with_ours(family, PROMPT)
    plain = sample_in_diffusers(stock_pipeline(tiny_sd), PROMPT)
    pipe = stock_pipeline(tiny_sd)
    pipe.load_lora_weights(tmp_path, weight_name="a.safetensors")
    theirs = sample_in_diffusers(pipe, PROMPT)
    assert np.abs(ours - theirs).mean() < 0.25 * np.abs(ours - plain).mean()


def test_of_a_model_only_the_matrices_of_the_unet_are_in_float8(tmp_path: Path, tiny_sdxl: Path) -> None:
    family = load_tiny(tiny_sdxl)
    path = tmp_path / "model.safetensors"
    output = {"dtype": "float8", "model_format": "single_file"}
    config = laid_over(Config(), {"model": {"family": "sdxl"}, "training": {"trains": "full"}, "output": output})
    ModelExporter(family, config).save(path, {}, SaveMoment(NOW, step=1, epoch=1))
    written = load_file(path)
    small = ("model.diffusion_model.time_embed.", "model.diffusion_model.label_emb.")
    unet = {n: t for n, t in written.items() if n.startswith("model.diffusion_model.") and not n.startswith(small)}
    assert {t.dtype for t in unet.values() if t.dim() > 1} == {torch.float8_e4m3fn}
    others = [t for n, t in written.items() if n not in unet or t.dim() < 2]
    assert {t.dtype for t in others if t.is_floating_point()} == {torch.float16}
    assert identify(path).is_model
    with safe_open(path, "pt") as file:
        assert file.metadata()["modelspec.unet_dtype"] == "float8_e4m3fn"
        assert file.metadata()["modelspec.vae_dtype"] == "float16"
    loaded = load_tiny(path, "sdxl")
    for name, tensor in family.parts["unet"].module.state_dict().items():
        own = loaded.parts["unet"].module.state_dict()[name].float()
        assert torch.allclose(own, tensor.float(), rtol=0.0626, atol=2**-10), name


def test_a_whole_model_in_float8_is_called_so() -> None:
    """Its vectors, which are more tensors than its matrices, are in float16, and so are its other parts."""
    parts = meta_parts("sd1")
    shapes = {f"{part}.{n}": tuple(t.shape) for part, module in parts.items() for n, t in module.state_dict().items()}
    dtypes = {n: "F8_E4M3" if n.startswith("unet.") and len(s) > 1 else "F16" for n, s in shapes.items()}
    assert Counter(dtypes.values()).most_common(1)[0][0] == "F16"
    assert CheckpointHeader(Path("a.safetensors"), "safetensors", shapes, dtypes, {}).main_dtype == "float8"


def test_values_that_float8_cannot_hold() -> None:
    values = torch.tensor([[1000.0, -1e6, 1e-4, 0.5]])
    tensors = {"x.weight": values, "x.bias": values[0], "n": torch.arange(3), "ends.weight": values[:, 2:]}
    found = matrices_in_float8({name: lazy(tensor) for name, tensor in tensors.items()}, {"ends"})
    assert found["x.weight"].make().float().tolist() == [[448.0, -448.0, 0.0, 0.5]]
    assert [t.dtype for t in found.values()] == [torch.float8_e4m3fn, torch.float16, torch.int64, torch.float16]


def test_a_weight_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    broken = {"lora_unet_x.lora_down.weight": torch.full((2, 2), torch.nan), "lora_unet_x.alpha": torch.tensor(1.0)}
    with pytest.raises(DarkroomError, match="finite"):
        write_safetensors(tmp_path / "a.safetensors", adapter_in_float8(broken, {"lora_down.weight"}), {})
    infinite = matrices_in_float8({"w.weight": lazy(torch.full((2, 2), torch.inf))})
    with pytest.raises(DarkroomError, match="finite"):
        write_safetensors(tmp_path / "a.safetensors", infinite, {})
