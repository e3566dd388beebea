"""Chroma1 alone: its mask, its approximator, its T5; what all flow families share is in tests/training/flow."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from modules.config.codec import decode
from modules.config.quantized_parts import quantized_parts
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.chroma.files import TRANSFORMER_FILE
from modules.families.chroma.model import Chroma, attention_mask
from modules.families.chroma.spec import CHROMA, FROZEN
from modules.families.kinds.identify import identify, who_loads_file
from modules.families.parts.conditioning import TokenConditioning
from modules.families.parts.single_file.checkpoint import load_part_file
from modules.families.parts.single_file.moves import to_original
from modules.formats.lazy_tensors import lazy_state
from modules.formats.safetensors_io import read_safetensors
from modules.system.devices import CPU
from tests.builders.chroma import chroma_pipeline
from tests.builders.configs import laid_over, small_config
from tests.builders.pipelines import family_fixture, load_tiny, noise_of
from tests.builders.runs import Ran, assert_equal_tensors, losses, run
from trainer.__main__ import main
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate
from ui.forms.records import groups_of, inline_records


@pytest.fixture
def config(tiny_chroma: Path, images: Path, tmp_path: Path) -> Config:
    tree = {"training": {"epochs": 1, "noise": {"distribution": "inverted_parabola", "noising_weight": 7.7}}}
    return laid_over(small_config(tmp_path, model=tiny_chroma, images=images), tree)


family = family_fixture("tiny_chroma", CHROMA.name)


def saved_names(ran: Ran) -> set[str]:
    return set(read_safetensors(Path(ran.finished.model_path))[0])


# -- the mask


def test_each_sample_sees_its_own_tokens_and_one_of_its_padding(family: Chroma) -> None:
    """Not those that any prompt of the batch sees, as a product over the batch would give."""
    assert family.encode_prompts(["", "a red disc"]).lengths == (2, 5)
    mask = attention_mask((2, 5), 3, CPU.torch)
    assert mask is not None
    assert mask.dtype is torch.bool
    assert mask.tolist() == [[True] * 2 + [False] * 3 + [True] * 3, [True] * 8]
    assert attention_mask((5, 5), 3, CPU.torch) is None


@torch.no_grad()
def test_the_token_of_the_padding_is_seen_and_no_further_one(family: Chroma) -> None:
    noisy, timesteps = noise_of(family, batch=2, seed=4), torch.tensor([300.0, 300.0])
    text = family.encode_prompts(["a", "a red disc of a disc"])
    before = family.predict(noisy, timesteps, text)
    beyond, visible = text.states_BLD.clone(), text.states_BLD.clone()
    beyond[0, text.lengths[0] :] = 1e3
    visible[0, text.lengths[0] - 1] += 1.0
    assert torch.equal(family.predict(noisy, timesteps, TokenConditioning(beyond, text.lengths)), before)
    after = family.predict(noisy, timesteps, TokenConditioning(visible, text.lengths))
    assert not torch.allclose(after[0], before[0], atol=1e-4)
    assert torch.equal(after[1], before[1])


def test_a_prompt_of_all_tokens_has_no_padding(family: Chroma) -> None:
    assert family.encode_prompts(["a " * 600]).lengths == (512,)


# -- the approximator


def test_the_approximator_is_never_trained(config: Config, family: Chroma, tmp_path: Path) -> None:
    output = {"model_format": "diffusers", "destination": str(tmp_path / "tuned"), "dtype": "float32"}
    tuned = laid_over(config, {"training": {"trains": "full", "learning_rate": 0.01}, "output": output})
    saved: Chroma = load_tiny(Path(run(tuned).finished.model_path), CHROMA.name)
    before, after = (dict(f.denoiser.named_parameters()) for f in (family, saved))
    same = {name for name in before if torch.equal(before[name], after[name])}
    assert same == {name for name in before if name.startswith(FROZEN)}


def test_the_approximator_gets_no_adapter_and_is_not_quantized(config: Config) -> None:
    every = laid_over(config, {"adapter": {"layers": "all"}, "parts": {"transformer": {"dtype": "int8"}}})
    ran = run(every)
    assert "transformer.proj_out.lora_A.default.weight" in ran.weights
    assert not [name for name in ran.weights if "distilled_guidance_layer" in name]
    chosen = quantized_parts(every).formats["transformer"]
    assert chosen.takes("transformer_blocks.0.attn.to_q")
    assert chosen.takes("single_transformer_blocks.0.proj_out")
    for path in (f"{FROZEN}in_proj", f"{FROZEN}layers.0.linear_1", "context_embedder", "x_embedder", "proj_out"):
        assert not chosen.takes(path)
    own = {"layers": "custom", "custom_layers": "distilled_guidance_layer"}
    assert "distilled_guidance_layer" in str(run(laid_over(config, {"adapter": own})).ending)


# -- T5


def test_t5_learns_and_its_lora_continues(config: Config, tiny_chroma: Path, family: Chroma, tmp_path: Path) -> None:
    output = {"dtype": "float32", "format": "kohya", "destination": str(tmp_path / "lora.safetensors")}
    ran = run(
        laid_over(
            config, {"output": output, "training": {"learning_rate": 0.01}, "parts": {"transformer": {"train": False}}}
        )
    )
    layer = "lora_te1_encoder_block_0_layer_0_SelfAttention_q"
    assert f"{layer}.lora_down.weight" in saved_names(ran)
    file = Path(ran.finished.model_path)
    assert identify(file).family == CHROMA.name
    further = laid_over(config, {"adapter": {"start_from": str(file)}, "parts": {"transformer": {"train": False}}})
    assert not check(further).errors
    assert losses(run(further))[0] != losses(ran)[0]
    peft = tmp_path / "peft.safetensors"
    assert main(["convert", str(file), str(peft), "--to", "peft"]) == 0
    pipe = chroma_pipeline(tiny_chroma, family)
    for form in (file, peft):
        [answer] = [x for x in who_loads_file(form)[1] if x.program == "diffusers"]
        assert answer.loads == "none"
        with pytest.raises(ValueError, match="infer state dict type"):  # its loader expects a CLIP's layers
            pipe.load_lora_weights(form)


def test_an_embedding_learns_on_t5(
    config: Config, images: Path, tiny_chroma: Path, family: Chroma, tmp_path: Path
) -> None:
    folder = tmp_path / "images"
    shutil.copytree(images, folder)
    for file in folder.glob("*.txt"):
        file.write_text("a <zog> on white")
    words = [{"placeholder": "<zog>", "initial_text": "disc", "token_count": 2}]
    embedding = {
        "training": {"trains": "embedding", "learning_rate": 0.1},
        "embeddings": {"words": words},
        "concepts": [{"path": str(folder)}],
        "output": {"destination": str(tmp_path / "zog.safetensors")},
    }
    ran = run(laid_over(config, embedding))
    tensors = read_safetensors(Path(ran.finished.model_path))[0]
    assert {name: tuple(t.shape) for name, t in tensors.items()} == {"t5xxl": (2, 24)}
    kind, loads = who_loads_file(Path(ran.finished.model_path))
    assert (kind.kind, kind.family) == ("embedding", CHROMA.name)
    assert {x.program: x.loads for x in loads} == {"ComfyUI": "unknown", "Forge": "unknown", "diffusers": "all"}
    pipe = chroma_pipeline(tiny_chroma, family)
    pipe.load_textual_inversion(ran.finished.model_path, token="<zog>")
    assert torch.equal(pipe.text_encoder.shared.weight[-2:], tensors["t5xxl"])


# -- files


def test_a_file_in_the_original_layout_replaces_the_transformer(family: Chroma, tmp_path: Path) -> None:
    """The embedded numbers of the modulations are in no file: they are made anew."""
    module, file = family.denoiser, tmp_path / "chroma.safetensors"
    original = to_original(TRANSFORMER_FILE.layout(dict(module.config)).slots, lazy_state(module.state_dict()))
    save_file({name: tensor.make().contiguous() for name, tensor in original.items()}, file)
    kind = identify(file)
    assert (kind.kind, kind.family) == ("part", CHROMA.name)
    read = load_part_file(file, CHROMA, CHROMA.denoiser, dict(module.config), torch.float32)
    assert_equal_tensors(read.state_dict(), module.state_dict())
    assert torch.equal(read.time_text_embed.mod_proj, module.time_text_embed.mod_proj)


# -- what the user sees


@pytest.mark.parametrize(
    ("name", "is_distilled"), [("Chroma1-HD", False), ("Chroma1-Base", False), ("Chroma1-Flash", True)]
)
def test_flash_alone_is_distilled(config: Config, name: str, is_distilled: bool) -> None:
    problems = check(laid_over(config, {"model": {"base_model": f"lodestones/{name}"}})).problems
    assert any("seems to be a distilled model" in p.message for p in problems) is is_distilled


def test_it_has_no_settings_of_its_own(config: Config) -> None:
    [choice] = groups_of(config, ("model.family",))[0].records
    assert [record.path for record in inline_records(config, choice)] == []


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 19.0, 24.0), ("int8", 10.0, 15.0)])
def test_the_published_model_needs_the_known_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    """SimpleTuner and OneTrainer measured about 17.7 GiB with bf16 weights and 10.4 with int8 ones, checkpointed."""
    parts = {
        "transformer": {"dtype": dtype, "checkpointing": "block"},
        "text_encoder": {"train": False, "dtype": dtype},
    }
    tree = {"model": {"family": "chroma", "base_model": "lodestones/Chroma1-HD"}, "parts": parts}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 5, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most
