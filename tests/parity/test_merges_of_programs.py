"""Every kind of adapter file that is written here, merged as each program does, against the layer that was trained.

The formulas are those that the programs publish, in the words of this test; LyCORIS is installed and asked itself.
`inspect` must say of each file what comes out here. diffusers has tests of its own (test_lora_files_in_diffusers).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from lycoris import create_lycoris_from_weights
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional

from modules.adapters.protocol import Adapter, kind_of
from modules.adapters.registry import ADAPTERS
from modules.families.kinds.file_kind import FileKind
from modules.families.kinds.lora import adapter_loads
from modules.families.kinds.record import Loads
from modules.families.lora_naming import LoraNaming
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_targets import AdapterTargets
from modules.formats.checkpoint_header import read_checkpoint_header
from modules.system.paths import PROGRAM_ROOT

Factors = Mapping[str, torch.Tensor]
Merge = Callable[[torch.Tensor, Factors, float | None], torch.Tensor]

LINEAR, KERNEL, POINT = (
    "mid_block.resnets.0.time_emb_proj",
    "mid_block.resnets.0.conv1",
    "mid_block.attentions.0.proj_in",
)
LAYERS = (LINEAR, KERNEL, POINT)
FORMS: dict[str, dict[str, Any]] = {
    "LoRA": {"name": "lora"},
    "LoRA, rank-stabilized": {"name": "lora", "rank_stabilized": True},
    "LoRA, ranks by layer": {"name": "lora", "layer_ranks": "proj_in = 2:1"},
    "LoRA, PiSSA": {"name": "lora", "init": "pissa"},
    "LoHa": {"name": "loha"},
    "LoHa, Tucker": {"name": "loha", "use_tucker": True},
    "LoKr": {"name": "lokr"},
    "LoKr, both low rank": {"name": "lokr", "decompose_both": True, "rank": 1},
    "LoKr, factor": {"name": "lokr", "factor": 4},
    "LoKr, full": {"name": "lokr", "full_matrix": True},
    "LoKr, Tucker": {"name": "lokr", "use_tucker": True},
    "OFT": {"name": "oft"},
    "COFT": {"name": "oft", "constraint": 1e-3},
    "OFT, shared and scaled": {"name": "oft", "block_share": True, "scaled": True},
    "OFT, rescaled": {"name": "oft", "rescale": True},
    "OFT v2": {"name": "oft", "rotates": "inputs"},
}
FORMS |= {
    f"{name}, DoRA of {axis}": {**FORMS[name], "decompose": True, "decompose_output_axis": axis == "outputs"}
    for name in ("LoRA", "LoRA, PiSSA", "LoHa", "LoKr", "LoKr, full", "LoKr, Tucker")
    for axis in ("inputs", "outputs")
}


class NotReadError(Exception):
    """The program does not know these factors."""


# -- what the programs have in common


def product_of(weight: torch.Tensor, own: Factors, alpha: float | None) -> torch.Tensor:
    """Return alpha by rank times the product of the factors. Low-rank pairs are matrices; Tucker has a core between."""
    if "lora_up.weight" in own:
        up, down = own["lora_up.weight"].flatten(1), own["lora_down.weight"].flatten(1)
        product, rank = up @ down, down.shape[0]
    elif "hada_w1_a" in own:
        sides = []
        for n in (1, 2):
            a, b = own[f"hada_w{n}_a"], own[f"hada_w{n}_b"]
            core = own.get(f"hada_t{n}")
            sides.append(torch.mm(a, b) if core is None else torch.einsum("ijkl,jr,ip->prkl", core, b, a))
        product, rank = sides[0] * sides[1], own["hada_w1_b"].shape[0]
    elif any(name.startswith("lokr_") for name in own):
        product, rank = kronecker(own, contiguous=False)
    else:
        raise NotReadError
    return (product * (alpha / rank if alpha is not None and rank else 1.0)).reshape(weight.shape)


def kronecker(own: Factors, *, contiguous: bool) -> tuple[torch.Tensor, int]:
    rank, whole = 0, []
    for n in (1, 2):
        if f"lokr_w{n}" in own:
            whole.append(own[f"lokr_w{n}"])
            continue
        a, b = own[f"lokr_w{n}_a"], own[f"lokr_w{n}_b"]
        core = own.get("lokr_t2") if n == 2 else None
        whole.append(a @ b if core is None else torch.einsum("ijkl,jr,ip->prkl", core, b, a))
        rank = b.shape[0]
    first, second = whole
    second = second.contiguous() if contiguous else second
    return torch.kron(first[:, :, None, None] if second.ndim == 4 else first, second), rank


def rotation_of(weight: torch.Tensor, own: Factors, limit: float) -> torch.Tensor:
    """Return the weight with its outputs rotated block by block: R = (I + Q) (I - Q)^-1, with |Q| limited."""
    if "oft_blocks" not in own:
        raise NotReadError
    blocks = own["oft_blocks"]
    skew = blocks - blocks.transpose(1, 2)
    if limit:
        skew = skew * (limit / skew.norm()).clamp(max=1.0)
    eye = torch.eye(skew.shape[1])
    rotations = (eye + skew) @ torch.linalg.inv(eye - skew)
    turned = torch.einsum("knm,kni->kmi", rotations, weight.reshape(len(blocks), skew.shape[1], -1))
    return turned.reshape(weight.shape)


def norms(weight: torch.Tensor, axis: int) -> torch.Tensor:
    return weight.square().sum([n for n in range(weight.ndim) if n != axis], keepdim=True).sqrt()


# -- and what each does


def comfyui(weight: torch.Tensor, own: Factors, alpha: float | None) -> torch.Tensor:
    if "oft_blocks" in own:
        return rotation_of(weight, own, alpha or 0.0)  # alpha is the limit as it stands; "rescale" is not used
    changed = weight + product_of(weight, own, alpha)
    if (scale := own.get("dora_scale")) is None:
        return changed
    if scale.shape[0] == weight.shape[0]:
        return changed * scale / norms(weight, 0)  # of the weight before the change
    return changed * scale / norms(changed, 1)


def forge(weight: torch.Tensor, own: Factors, alpha: float | None) -> torch.Tensor:
    if "oft_blocks" in own:
        raise NotReadError
    return comfyui(weight, own, alpha)


def a1111(weight: torch.Tensor, own: Factors, alpha: float | None) -> torch.Tensor:
    if "oft_blocks" in own:
        turned = rotation_of(weight, own, (alpha or 0.0) * weight.shape[0])
        return turned * own.get("rescale", torch.ones(()))
    if any(name.startswith("lokr_") for name in own):
        product, rank = kronecker(own, contiguous=True)
        change = (product * (alpha / rank if alpha is not None and rank else 1.0)).reshape(weight.shape)
    else:
        change = product_of(weight, own, alpha)
    changed = weight + change
    scale = own.get("dora_scale")
    return (
        changed if scale is None else changed * (scale / norms(changed, 1))
    )  # of the inputs, whatever the scale's axis


MERGES: dict[str, Merge] = {"ComfyUI": comfyui, "Forge": forge, "A1111": a1111}


# -- files


def model() -> nn.ModuleDict:
    torch.manual_seed(0)
    resnet = nn.ModuleDict({"time_emb_proj": nn.Linear(24, 64), "conv1": nn.Conv2d(24, 64, 3, padding=1)})
    attention = nn.ModuleDict({"proj_in": nn.Conv2d(64, 64, 1)})
    mid = nn.ModuleDict({"resnets": nn.ModuleList([resnet]), "attentions": nn.ModuleList([attention])})
    return nn.ModuleDict({"mid_block": mid})


def inputs(path: str) -> torch.Tensor:
    shape = {LINEAR: (2, 24), KERNEL: (2, 24, 6, 5), POINT: (2, 64, 6, 5)}[path]
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def trained(options: Mapping[str, Any], module: nn.Module) -> list[AdapterLayer]:
    """Put an adapter on a model, move all of its weights, and return the layers of its file."""
    spec = ADAPTERS[options["name"]]
    rank = {} if spec.name == "oft" else {"rank": 2, "alpha": 3.0}
    settings = spec.settings(**{**rank, **options})
    adapter: Adapter = kind_of(spec).attach("unet", module, list(LAYERS), settings, seed=1)
    generator = torch.Generator().manual_seed(3)
    for parameter in adapter.parameters().values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.1
    return adapter.stored_layers({n: p.detach() for n, p in adapter.parameters().items()})


def written(options: Mapping[str, Any], module: nn.Module, path: Path) -> dict[str, torch.Tensor]:
    """Train an adapter on a model, write its file and return the tensors in it."""

    def name_of(part: str, layer: str) -> str:
        return f"lora_{part}_{layer.replace('.', '_')}"

    naming = LoraNaming(name_of, name_of, name_of, "", "", "sd1", AdapterTargets.of([]))
    tensors, _ = kind_of(ADAPTERS[options["name"]]).write(trained(options, module), "kohya", naming)
    save_file(dict(tensors), path)
    return load_file(path)


def answers(path: Path) -> dict[str, Loads]:
    return {x.program: x for x in adapter_loads(read_checkpoint_header(path), FileKind("lora", "", model="sd1"))}


def applied(layer: nn.Module, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if isinstance(layer, nn.Conv2d):
        return functional.conv2d(x, weight, layer.bias, layer.stride, layer.padding)
    assert isinstance(layer, nn.Linear)
    return functional.linear(x, weight, layer.bias)


def is_trained_layer(merge: Merge, plain: nn.Module, layer: str, tensors: Factors, goal: torch.Tensor) -> bool:
    """Whether a program's layer, with what it merges of a file, is the trained one."""
    start = f"lora_unet_{layer.replace('.', '_')}."
    own = {name.removeprefix(start): t for name, t in tensors.items() if name.startswith(start)}
    alpha = float(own.pop("alpha")) if "alpha" in own else None
    base = plain.get_submodule(layer)
    try:
        weight = merge(base.weight.detach(), own, alpha)  # type: ignore[operator]
    except (NotReadError, RuntimeError):
        return False
    return torch.allclose(applied(base, inputs(layer), weight), goal, rtol=1e-4, atol=1e-4)


def is_trained_model(plain: nn.Module, tensors: Factors, goals: Mapping[str, torch.Tensor]) -> bool:
    """Whether LyCORIS' own loader makes the trained layers out of a file."""
    named = {f"lycoris_{name.removeprefix('lora_unet_')}": tensor for name, tensor in tensors.items()}
    try:
        network, _ = create_lycoris_from_weights(1.0, "", plain, weights_sd=named)
    except Exception:  # noqa: BLE001 - whatever it raises, it does not load the file
        return False
    network.apply_to()
    network.eval()
    found = {layer: plain.get_submodule(layer)(inputs(layer)) for layer in goals}
    return all(torch.allclose(found[layer], goal, rtol=1e-4, atol=1e-4) for layer, goal in goals.items())


@pytest.mark.parametrize("form", FORMS)
def test_inspect_says_which_programs_merge_what_was_trained(form: str, tmp_path: Path) -> None:
    module, plain = model(), model()
    tensors = written(FORMS[form], module, tmp_path / "adapter.safetensors")
    with torch.no_grad():
        goals = {layer: module.get_submodule(layer)(inputs(layer)) for layer in LAYERS}
        for layer, goal in goals.items():  # the adapter has an effect
            assert (goal - plain.get_submodule(layer)(inputs(layer))).abs().max() > 0.01
        found = answers(tmp_path / "adapter.safetensors")
        for program, merge in MERGES.items():
            exact = sum(is_trained_layer(merge, plain, layer, tensors, goal) for layer, goal in goals.items())
            assert found[program].loads == ("all" if exact == len(goals) else "part" if exact else "none"), program
        assert found["LyCORIS"].complete in (None, is_trained_model(plain, tensors, goals))
        assert found["LyCORIS"].complete is not None or "low ranks on kernels" in found["LyCORIS"].note


BY_DEFAULT = {
    f"{name}, DoRA" if decompose else name: {**FORMS[name], "decompose": decompose}
    for name in ("LoRA", "LoHa", "LoHa, Tucker", "LoKr", "LoKr, Tucker")
    for decompose in (False, True)
}


@pytest.mark.parametrize("form", BY_DEFAULT)
def test_dora_switched_on_is_merged_as_it_was_trained(form: str, tmp_path: Path) -> None:
    """Its axis is that of the defaults."""
    module, plain = model(), model()
    tensors = written(BY_DEFAULT[form], module, tmp_path / "adapter.safetensors")
    with torch.no_grad():
        goals = {layer: module.get_submodule(layer)(inputs(layer)) for layer in LAYERS}
        for layer, goal in goals.items():
            exact = {p: is_trained_layer(merge, plain, layer, tensors, goal) for p, merge in MERGES.items()}
            assert exact == dict.fromkeys(MERGES, True), layer


IN_DOCS = {
    "LoRA, kohya format": "LoRA",
    "DoRA on the input axis, kohya": "LoRA, DoRA of inputs",
    "DoRA on the output axis, kohya": "LoRA, DoRA of outputs",
    "LoHa": "LoHa",
    "LoKr": "LoKr",
    "OFT, outputs (Diag-OFT, COFT)": "COFT",
    "OFT, outputs, rescaled": "OFT, rescaled",
    "OFT, inputs (OFT v2)": "OFT v2",
}


def test_the_documents_say_the_same(tmp_path: Path) -> None:
    text = (PROGRAM_ROOT / "docs" / "adapters.md").read_text("utf-8")
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    head = next(row for row in lines if row[0] == "file")
    rows = {row[0]: dict(zip(head, row, strict=True)) for row in lines if len(row) == len(head)}
    for label, form in IN_DOCS.items():
        written(FORMS[form], model(), tmp_path / "adapter.safetensors")
        found = answers(tmp_path / "adapter.safetensors")
        for program in MERGES:
            assert (rows[label][program] == "yes") is found[program].complete, (label, program)
        assert rows[label]["LyCORIS"].startswith("yes") is (found["LyCORIS"].complete is not False), label
        assert rows[label]["diffusers"].startswith("yes") is found["diffusers"].complete, label
