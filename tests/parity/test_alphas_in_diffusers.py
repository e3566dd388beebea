"""kohya files with several alphas: diffusers gives some layers the alpha of others, and inspect says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import StableDiffusionPipeline, StableDiffusionXLPipeline
from peft.tuners.lora import LoraLayer

from modules.families.kinds.identify import who_loads_file
from modules.families.kinds.record import Loads
from tests.builders import lora_keys as by
from tests.builders.lora_keys import Keys, Which
from tests.parity.test_consumers_in_diffusers import quiet  # noqa: F401
from tests.unit.test_kinds import write_header
from tests.unit.test_program_table import loads

pytestmark = pytest.mark.filterwarnings("ignore:The following alpha_pattern keys")
Alphas = dict[str, float]
UNUSUAL: dict[str, Callable[[str, str], bool]] = {
    "attention of the UNet": lambda part, path: part == "unet" and ".attn1." in path,
    "other layers of the UNet": lambda part, path: part == "unet" and ".ff." in path,
    "first encoder, MLP": lambda part, path: part == "text_encoder" and path.endswith("fc1"),
    "second encoder, MLP": lambda part, path: part == "text_encoder_2" and path.endswith("fc1"),
    "attention of the encoders": lambda part, path: part != "unet" and path.endswith("q_proj"),
    "a part of its own": lambda part, path: part == "text_encoder",
}


def name_of(model: str, part: str, path: str, *, bare: bool = False) -> str:
    """The name of a layer in kohya's form; `bare`: without text_model."""
    name = by.kohya_name(model, part, path, is_sgm=model == "sdxl")
    return name.replace("_text_model_", "_") if bare else name


def kohya_lora(model: str, unusual: Which, *, bare: bool = False) -> tuple[Keys, Alphas]:
    """A LoRA of sd-scripts with alpha 2, and alpha 1 in the unusual layers."""
    keys: Keys = {}
    alphas: Alphas = {}
    for part, path, module in by.layers(model, by.transformers):
        name = name_of(model, part, path, bare=bare)
        down, up = by.matrices(module)
        keys |= {f"{name}.lora_down.weight": down, f"{name}.lora_up.weight": up, f"{name}.alpha": ()}
        alphas[f"{name}.alpha"] = 1.0 if unusual(part, path) else 2.0
    return keys, alphas


def right_in_diffusers(model: str, keys: Keys, alphas: Alphas, *, bare: bool = False) -> int:
    """How many layers have the strength of the file after diffusers has loaded it."""
    parts = by.meta_parts(model)
    kind = StableDiffusionXLPipeline if model == "sdxl" else StableDiffusionPipeline
    pipe: Any = object.__new__(type("OnlyParts", (kind,), {"components": parts}))
    for name, loaded in parts.items():
        object.__setattr__(pipe, name, loaded)
    state = {n: torch.tensor(alphas[n]) if n in alphas else torch.empty(s, device="meta") for n, s in keys.items()}
    pipe.load_lora_weights(state, adapter_name="one", low_cpu_mem_usage=True)
    found = {}
    for owner, module in parts.items():
        for path, layer in module.named_modules():
            if isinstance(layer, LoraLayer):
                is_text = owner != "unet" and not path.startswith("text_")
                found[owner, f"text_model.{path}" if is_text else path] = layer.scaling["one"]
    right = 0
    for part, path, _ in by.layers(model, by.transformers):
        alpha = alphas.get(f"{name_of(model, part, path, bare=bare)}.alpha", float(by.RANK))
        right += found[part, path] == alpha / by.RANK
    return right


def loads_of(path: Path, keys: Keys, alphas: Alphas) -> dict[str, Loads]:
    _, loads = who_loads_file(write_header(path, keys, values=alphas))
    return {x.program: x for x in loads}


SECOND = ("second encoder, MLP", "attention of the encoders")
CASES = [("sd1", name) for name in UNUSUAL if name not in SECOND] + [("sdxl", name) for name in SECOND]


@pytest.mark.daily(1)
@pytest.mark.parametrize(("model", "unusual"), CASES)
def test_a_wrong_strength_of_some_layers_is_said(model: str, unusual: str, tmp_path: Path) -> None:
    keys, alphas = kohya_lora(model, UNUSUAL[unusual])
    found = loads_of(tmp_path / "lora.safetensors", keys, alphas)
    right = right_in_diffusers(model, keys, alphas)
    assert found["diffusers"].loads == ("all" if right == len(alphas) else "part")
    assert found["ComfyUI"].complete
    if not found["diffusers"].complete:
        assert found["diffusers"].note.endswith("convert it to the PEFT form")


@pytest.mark.parametrize("unusual", ["first encoder, MLP", "attention of the encoders"])
def test_names_without_text_model(unusual: str, tmp_path: Path) -> None:
    keys, alphas = kohya_lora("sd1", UNUSUAL[unusual], bare=True)
    found = loads_of(tmp_path / "lora.safetensors", keys, alphas)["diffusers"]
    right = right_in_diffusers("sd1", keys, alphas, bare=True)
    assert found.loads == ("all" if right == len(alphas) else "part")


def test_layers_without_an_alpha_get_that_of_the_others(tmp_path: Path) -> None:
    keys, alphas = kohya_lora("sd1", UNUSUAL["attention of the UNet"])
    missing = [name for name, alpha in alphas.items() if alpha == 1.0]
    keys = {name: shape for name, shape in keys.items() if name not in missing}
    alphas = {name: alpha for name, alpha in alphas.items() if name not in missing}
    found = loads_of(tmp_path / "lora.safetensors", keys, alphas)["diffusers"]
    assert right_in_diffusers("sd1", keys, alphas) == len(alphas)
    assert found.loads == "part"


def test_alphas_that_cannot_be_read_are_doubted_where_ranks_differ() -> None:
    keys, _ = kohya_lora("sd1", UNUSUAL["attention of the UNet"])
    assert loads("sd1", keys)["diffusers"].complete  # there is no such file, so no alpha can be read
    name = next(n for n in keys if n.startswith("lora_unet") and n.endswith("attn1_to_q.lora_down.weight"))
    up = name.replace("lora_down", "lora_up")
    found = loads("sd1", keys | {name: (8, *keys[name][1:]), up: (keys[up][0], 8)})["diffusers"]
    assert found.complete is None
    assert "a wrong strength if their alpha differs" in found.note
    assert found.note.endswith("convert it to the PEFT form")
