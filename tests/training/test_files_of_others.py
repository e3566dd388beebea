"""Adapter files as other programs write them: what they change, by each program's own formula, and what is said."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoHaConfig, LoKrConfig, LoraConfig, get_peft_model
from safetensors.torch import save_file
from torch import nn

from modules.adapters.stack import AdapterStack
from modules.adapters.tools.merge import MergedModel, merge_into_model
from modules.adapters.tools.opening import WeightedFile
from modules.families.kinds.conversion import open_source
from modules.families.kinds.identify import identify
from modules.system.errors import DarkroomError
from tests.builders.adapter_files import Filled
from tests.builders.pipelines import load_tiny

pytestmark = pytest.mark.usefixtures("one_thread")

BLOCK = "down_blocks.0.attentions.0.transformer_blocks.0"
LAYERS = (f"{BLOCK}.attn1.to_q", f"{BLOCK}.ff.net.2", "down_blocks.0.resnets.0.conv1", "mid_block.resnets.0.conv1")
SCALED = "oft_R.scaled_oft"


def unet_of(folder: Path) -> nn.Module:
    module: nn.Module = copy.deepcopy(load_tiny(folder).parts["unet"].module)
    return module


def weight_of(module: nn.Module, path: str) -> torch.Tensor:
    weight = module.get_submodule(path).weight
    assert isinstance(weight, torch.Tensor)
    return weight.detach().float()


def merge(model: Path, file: Path) -> MergedModel:
    return merge_into_model(open_source(model), [WeightedFile(file)], dtype=None)


def changes(model: Path, file: Path) -> dict[str, torch.Tensor]:
    """What merging a file adds to the weights of the UNet's layers, by their paths."""
    found, base = merge(model, file).source.states["unet"], open_source(model).states["unet"]
    own = {name: (found[name].make().float() - base[name].make().float()) for name in base}
    return {name.removesuffix(".weight"): change for name, change in own.items() if change.any()}


def saved_by_peft(model: Path, config: Any, folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """The file in a folder that PEFT saved, and what PEFT itself adds to each layer."""
    wrapped = get_peft_model(unet_of(model), config)
    filled = Filled(1)
    with torch.no_grad():
        for name, parameter in wrapped.named_parameters():
            if parameter.requires_grad:
                assert any(word in name for word in ("hada", "lokr", "lora")), name
                parameter.copy_(filled(*parameter.shape) * 3)
    wrapped.save_pretrained(folder)
    layers = {
        n.removeprefix("base_model.model."): m for n, m in wrapped.named_modules() if hasattr(m, "get_delta_weight")
    }
    return folder / "adapter_model.safetensors", {n: m.get_delta_weight("default").detach() for n, m in layers.items()}


LARGE = {"rank_pattern": {"to_q": 2}, "alpha_pattern": {"to_q": 6.0, "conv1": 1.0}}


@pytest.mark.parametrize(
    "config",
    [
        LoHaConfig(r=4, alpha=2, target_modules=list(LAYERS)),
        LoHaConfig(r=4, alpha=2, target_modules=list(LAYERS), use_effective_conv2d=True, **LARGE),
        LoKrConfig(r=2, alpha=1, target_modules=list(LAYERS)),
        LoKrConfig(r=2, alpha=3, target_modules=list(LAYERS), decompose_both=True, use_effective_conv2d=True, **LARGE),
        LoKrConfig(r=64, alpha=16, target_modules=list(LAYERS), use_effective_conv2d=True),
        LoraConfig(r=4, lora_alpha=2, target_modules=list(LAYERS), init_lora_weights=False),
    ],
    ids=["LoHa", "LoHa, Tucker, patterns", "LoKr", "LoKr, Tucker, patterns", "LoKr, whole", "LoRA"],
)
def test_a_folder_of_peft_has_the_strength_of_its_config(config: Any, tiny_sd: Path, tmp_path: Path) -> None:
    file, expected = saved_by_peft(tiny_sd, config, tmp_path / "peft")
    found = changes(tiny_sd, file)
    assert found.keys() == expected.keys() == set(LAYERS)
    for path, change in expected.items():
        torch.testing.assert_close(found[path], change, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("config", [LoHaConfig, LoKrConfig, LoraConfig])
def test_a_file_of_peft_without_its_config_has_an_unknown_alpha(config: Any, tiny_sd: Path, tmp_path: Path) -> None:
    file, _ = saved_by_peft(tiny_sd, config(r=4, target_modules=list(LAYERS)), tmp_path / "peft")
    sentence = "Its alpha is unknown: "
    assert sentence not in identify(file).sentence
    assert not any(sentence in line for line in merge(tiny_sd, file).sentences)
    (file.parent / "adapter_config.json").unlink()
    assert sentence in identify(file).sentence
    assert any(sentence in line for line in merge(tiny_sd, file).sentences)


def rotation(vectors: torch.Tensor, divisor: float) -> torch.Tensor:
    """The rotation of OFT v2: five terms of the Cayley transform's series (Qiu et al. 2025, section 4)."""
    side = int((1 + math.sqrt(1 + 8 * vectors.shape[1])) / 2)
    rows, columns = torch.triu_indices(side, side, 1)
    blocks = []
    for vector in vectors / divisor:
        q = torch.zeros(side, side)
        q[rows, columns] = vector
        q = q - q.T
        blocks.append(torch.eye(side) + 2 * q + 2 * q @ q + 2 * q @ q @ q + q @ q @ q @ q)
    return torch.block_diag(*blocks)


@pytest.mark.parametrize("side", [4, 16])
@pytest.mark.parametrize("form", ["lora_unet_{flat}", "unet.{path}", "diffusion_model.{original}"])
def test_scaled_oft_of_onetrainer_is_divided_as_it_divides(side: int, form: str, tiny_sd: Path, tmp_path: Path) -> None:
    """Its files mark it by a tensor `oft_R.scaled_oft`; the vectors are then divided by 2 sqrt(side - 1)."""
    path, original = f"{BLOCK}.attn1.to_q", "input_blocks.1.1.transformer_blocks.0.attn1.to_q"
    weight = weight_of(unet_of(tiny_sd), path)
    vectors = Filled()(weight.shape[1] // side, side * (side - 1) // 2)
    layer = form.format(flat=path.replace(".", "_"), path=path, original=original)
    save_file({f"{layer}.oft_R.weight": vectors, f"{layer}.{SCALED}": torch.tensor(True)}, tmp_path / "l.safetensors")
    [found] = changes(tiny_sd, tmp_path / "l.safetensors").values()
    expected = weight @ rotation(vectors, 2 * math.sqrt(side - 1)).T - weight
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_loha_of_onetrainer_has_factors_of_four_axes(tiny_sd: Path, tmp_path: Path) -> None:
    path = "down_blocks.0.attentions.0.proj_in"
    rows, columns = weight_of(unet_of(tiny_sd), path).shape[:2]
    filled = Filled()
    sides = [(filled(rows, 4, 1, 1), filled(4, columns, 1, 1)) for _ in range(2)]
    layer = f"lora_unet_{path.replace('.', '_')}"
    tensors = {f"{layer}.hada_w{n}_{s}": t for n, side in enumerate(sides, 1) for s, t in zip("ab", side, strict=True)}
    save_file({**tensors, f"{layer}.alpha": torch.tensor(2.0)}, tmp_path / "l.safetensors")
    first, second = (a.flatten(1) @ b.flatten(1) for a, b in sides)
    [found] = changes(tiny_sd, tmp_path / "l.safetensors").values()
    torch.testing.assert_close(found.flatten(1), first * second * 0.5, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("factor", ["oft_R.cans_oft", "oft_R.clipped_oft", "dora_log_multiplier", "lora_B.bias"])
@pytest.mark.parametrize("form", ["lora_unet_{flat}", "unet.{path}"])
def test_a_factor_of_an_unknown_meaning_is_not_left_out(factor: str, form: str, tiny_sd: Path, tmp_path: Path) -> None:
    path = f"{BLOCK}.attn1.to_q"
    layer = form.format(flat=path.replace(".", "_"), path=path)
    width = weight_of(unet_of(tiny_sd), path).shape[1]
    own = {"lora_down.weight": torch.ones(2, width), "lora_up.weight": torch.ones(width, 2)}
    own = {"oft_R.weight": torch.ones(width // 4, 6)} if "oft" in factor or "dora" in factor else own
    save_file({f"{layer}.{n}": t for n, t in {**own, factor: torch.ones(1)}.items()}, tmp_path / "l.safetensors")
    family = load_tiny(tiny_sd)
    stack = AdapterStack({n: p.module for n, p in family.parts.items()}, family.lora_naming)
    with pytest.raises(DarkroomError, match=f"unet.{path} .*is not known here"):
        merge(tiny_sd, tmp_path / "l.safetensors")
    with pytest.raises(DarkroomError, match=f"unet.{path} in a way that is not supported"):
        stack.put([WeightedFile(tmp_path / "l.safetensors")])


def write_flux(path: Path) -> Path:
    tensors = {}
    for block in range(3):
        for name in ("img_attn_proj", "txt_attn_proj", "img_mlp_0"):
            layer = f"lora_unet_double_blocks_{block}_{name}"
            tensors |= {f"{layer}.lora_down.weight": torch.ones(2, 8), f"{layer}.lora_up.weight": torch.ones(8, 2)}
    save_file(tensors, path)
    return path


def test_the_model_of_a_foreign_lora_is_named(tiny_sd: Path, tmp_path: Path) -> None:
    path = write_flux(tmp_path / "flux.safetensors")
    family = load_tiny(tiny_sd)
    stack = AdapterStack({n: p.module for n, p in family.parts.items()}, family.lora_naming)
    for use in (lambda: merge(tiny_sd, path), lambda: stack.put([WeightedFile(path)])):
        with pytest.raises(DarkroomError, match=r"A LoRA of rank 2 for FLUX\.1 dev"):
            use()


def sparse(path: Path, layer: str, shapes: dict[str, tuple[int, ...]]) -> Path:
    """A safetensors file whose tensors are a hole."""
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[f"{layer}.{name}"] = {"dtype": "F16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    return path


def test_a_file_larger_than_memory_is_refused_before_it_is_read(tiny_sd: Path, tmp_path: Path) -> None:
    layer, rank = f"lora_unet_{BLOCK.replace('.', '_')}_attn1_to_q", 2**41
    shapes = {"lora_down.weight": (rank, 1), "lora_up.weight": (1, rank)}
    path = sparse(tmp_path / "l.safetensors", layer, shapes)
    with pytest.raises(DarkroomError, match=r"l.safetensors needs .* of memory"):
        merge(tiny_sd, path)


def damaged(tensors: dict[str, torch.Tensor], what: str) -> dict[str, torch.Tensor]:
    layer = f"lora_unet_{BLOCK.replace('.', '_')}_attn1_to_q"
    up, down = tensors[f"{layer}.lora_up.weight"], tensors[f"{layer}.lora_down.weight"]
    match what:
        case "rank 0":
            changed = {"lora_up.weight": up[:, :0], "lora_down.weight": down[:0]}
        case "unequal ranks":
            changed = {"lora_down.weight": torch.cat([down, down])}
        case _:
            changed = {"alpha": torch.tensor(math.nan)}
    return tensors | {f"{layer}.{name}": tensor.contiguous() for name, tensor in changed.items()}


DAMAGE = {"rank 0": "has no rows", "unequal ranks": "have different ranks", "NaN alpha": "alpha is nan"}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named_wherever_a_file_is_read(what: str, tiny_sd: Path, tmp_path: Path) -> None:
    family, filled = load_tiny(tiny_sd), Filled()
    tensors = {}
    for path in (f"{BLOCK}.attn1.to_q", f"{BLOCK}.attn2.to_q"):
        layer, (rows, columns) = f"lora_unet_{path.replace('.', '_')}", weight_of(unet_of(tiny_sd), path).shape
        tensors |= {f"{layer}.lora_down.weight": filled(2, columns), f"{layer}.lora_up.weight": filled(rows, 2)}
        tensors[f"{layer}.alpha"] = torch.tensor(1.0)
    file = tmp_path / "l.safetensors"
    save_file(damaged(tensors, what), file)
    found = identify(file)
    assert DAMAGE[what] in found.sentence
    assert found.facts["damage"]
    stack = AdapterStack({n: p.module for n, p in family.parts.items()}, family.lora_naming)
    for use in (lambda: merge(tiny_sd, file), lambda: stack.put([WeightedFile(file)])):
        with pytest.raises(DarkroomError, match=DAMAGE[what]):
            use()
