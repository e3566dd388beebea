"""The table of programs against diffusers itself: how much of each kind of adapter file it loads."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL, StableDiffusionPipeline, StableDiffusionXLPipeline
from diffusers.loaders.textual_inversion import TextualInversionLoaderMixin, load_textual_inversion_state_dicts
from diffusers.utils import logging as diffusers_logging
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file, save_file
from transformers.utils import logging as transformers_logging

from modules.families.kinds.identify import who_loads_file
from modules.families.published import ALL_PROGRAMS
from modules.formats.adapter_names import tensors_by_layer
from tests.builders import lora_keys as by
from tests.builders.lora_keys import Keys
from tests.builders.single_files import write_tiny
from tests.unit.test_program_table import ROWS, loads

MORE: dict[str, tuple[str, Any]] = {
    "both namings": (
        "sdxl",
        lambda: (
            by.kohya("sdxl") | by.kohya("sdxl", lambda part, path: path == "mid_block.resnets.0.conv1", is_sgm=False)
        ),
    ),
    "text without text_model": ("sd1", lambda: by.renamed(by.kohya("sd1"), "text_model_", "")),
    "text without text_model, SGM": ("sdxl", lambda: by.renamed(by.kohya("sdxl"), "text_model_", "")),
    "SGM names, SD 1.5": ("sd1", lambda: by.kohya("sd1", is_sgm=True)),
    "lora_te_, SDXL": ("sdxl", lambda: by.kohya("sdxl", text="lora_te")),
    "a layer of another model": (
        "sd1",
        lambda: (
            by.kohya("sd1") | {"lora_unet_strange.lora_down.weight": (4, 4), "lora_unet_strange.lora_up.weight": (4, 4)}
        ),
    ),
    "text projection, PEFT": ("sdxl", lambda: by.peft("sdxl", by.everything)),
    "PEFT, denoiser without its prefix": ("sd1", lambda: by.renamed(by.peft("sd1", by.unet), r"^unet\.", "")),
    "PEFT, lora_down": (
        "sd1",
        lambda: by.renamed(by.renamed(by.peft("sd1", by.unet), "lora_A", "lora_down"), "lora_B", "lora_up"),
    ),
    "ComfyUI, original names": (
        "sd1",
        lambda: {n: s for n, s in by.comfy("sd1", by.unet).items() if not n.endswith(".alpha")},
    ),
}
LIKE_OTHERS = ("kohya, SDXL, transformers", "PEFT, SDXL", "diffusers, SDXL")
# Their shapes are not those of the model, or they are damaged.
ODD = ("DoRA of outputs", "DoRA of inputs", "inpainting", "a layer of two ranks", "rank of 0")
FILES = {name: (row[0], row[1]) for name, row in ROWS.items() if name not in LIKE_OTHERS} | MORE


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Loading on the meta device makes transformers report every weight as missing."""
    libraries = transformers_logging, diffusers_logging
    levels = [library.get_verbosity() for library in libraries]
    for library in libraries:
        library.set_verbosity(logging.CRITICAL)
    yield
    for library, level in zip(libraries, levels, strict=True):
        library.set_verbosity(level)


def loaded_by_diffusers(model: str, keys: Keys) -> int:
    """Return how many layers diffusers loads into a pipeline of full size on the meta device; 0 where it raises."""
    parts = by.meta_parts(model)
    kind = StableDiffusionXLPipeline if model == "sdxl" else StableDiffusionPipeline
    pipe: Any = object.__new__(type("OnlyParts", (kind,), {"components": parts}))
    for name, part in parts.items():
        object.__setattr__(pipe, name, part)
    state = {n: torch.empty(shape, device="meta") if shape else torch.tensor(4.0) for n, shape in keys.items()}
    try:
        pipe.load_lora_weights(state, adapter_name="one", low_cpu_mem_usage=True)
    except (KeyError, ValueError, IndexError):
        return 0
    return sum(isinstance(m, LoraLayer) for part in parts.values() for m in part.modules())


@pytest.mark.daily(6)
@pytest.mark.parametrize("name", [name for name in FILES if name not in ODD])
def test_the_table_says_what_diffusers_does(name: str) -> None:
    model, keys = FILES[name][:2]
    tensors = keys()
    num_loaded, num_layers = loaded_by_diffusers(model, tensors), len(tensors_by_layer(tensors))
    answer = "all" if num_loaded == num_layers else "part" if num_loaded else "none"
    assert loads(model, tensors, programs=("diffusers",))["diffusers"].loads == answer


@pytest.mark.parametrize("axis", ["outputs", "inputs"])
def test_dora_scales_are_dropped(axis: str) -> None:
    """The layers load as plain LoRA, so none of them is complete."""
    model, keys = FILES[f"DoRA of {axis}"]
    assert loaded_by_diffusers(model, keys()) == 354
    found = loads(model, keys(), programs=("diffusers",))["diffusers"]
    assert (found.loads, found.note) == ("none", "loads them without the DoRA scales")


def a1111(**changed: object) -> dict[str, object]:
    vectors = {"*": torch.zeros(2, 768)}
    return {"string_to_token": {"*": 265}, "string_to_param": vectors, "name": "cat", "step": 5, **changed}


EMBEDDINGS: dict[str, tuple[dict[str, object], bool]] = {
    "A1111": (a1111(), True),
    "A1111, other placeholder": (a1111(string_to_param={"<x>": torch.zeros(2, 768)}), False),
    "kohya": ({"emb_params": torch.zeros(2, 768)}, True),
    "a token": ({"<cat>": torch.zeros(768)}, True),
    "two tensors": ({"emb_params": torch.zeros(2, 768), "more": torch.zeros(2, 768)}, False),
    "SDXL": ({"clip_l": torch.zeros(2, 768), "clip_g": torch.zeros(2, 1280)}, False),
}


class NoTokens:
    """A tokenizer without tokens, which is all that reading an embedding uses of one."""

    def get_vocab(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize("name", EMBEDDINGS)
@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_embeddings_are_loaded_as_diffusers_does(name: str, suffix: str, tmp_path: Path) -> None:
    contents, expected = EMBEDDINGS[name]
    path = tmp_path / f"embedding{suffix}"
    if suffix == ".pt":
        torch.save(contents, path)
    elif all(isinstance(x, torch.Tensor) for x in contents.values()):
        save_file(contents, path)
    else:
        return  # A1111's form is a pickle
    _, loads = who_loads_file(path)
    found = next(x for x in loads if x.program == "diffusers")
    assert found.complete == expected
    read = load_textual_inversion_state_dicts([str(path)])
    if not expected:
        with pytest.raises((ValueError, KeyError)):
            TextualInversionLoaderMixin._retrieve_tokens_and_embeddings([None], read, NoTokens())
        return
    [token], _ = TextualInversionLoaderMixin._retrieve_tokens_and_embeddings([None], read, NoTokens())
    assert found.note.startswith(f"the token is {token},")


def test_a_vae_is_loaded_as_diffusers_does(tmp_path: Path) -> None:
    ours = write_tiny(tmp_path / "model.safetensors", "sd1")["vae"]
    ours.save_pretrained(tmp_path / "vae")
    start = "first_stage_model."
    tensors = {n.removeprefix(start): t for n, t in load_file(tmp_path / "model.safetensors").items() if start in n}
    path = tmp_path / "vae.safetensors"
    save_file(tensors, path)
    kind, loads = who_loads_file(path)
    assert kind.kind == "vae"
    assert {x.program: x.complete for x in loads} == dict.fromkeys(ALL_PROGRAMS, True)
    theirs = AutoencoderKL.from_single_file(str(path), config=str(tmp_path / "vae"), local_files_only=True)
    assert all(torch.equal(t, theirs.state_dict()[n]) for n, t in ours.state_dict().items())
    _, loads = who_loads_file(tmp_path / "vae" / "diffusion_pytorch_model.safetensors")
    assert {x.program: x.complete for x in loads} == {**dict.fromkeys(ALL_PROGRAMS), "diffusers": True}
