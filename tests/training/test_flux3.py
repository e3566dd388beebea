"""FLUX.3 alone: text and padding, batches of several lengths, what only references reach, files, distilled models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import ClassifierFreeGuidance, Flux3ModularPipeline
from diffusers.loaders.single_file_utils import convert_flux3_transformer_checkpoint_to_diffusers
from peft.tuners.lora import LoraLayer
from PIL import Image
from safetensors.torch import load_file, save_file

from modules.config.codec import decode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.data.inputs import REFERENCES
from modules.estimate.architecture import architecture_of
from modules.families.flux3.files import TRANSFORMER_FILE
from modules.families.flux3.model import TEMPLATE, Flux3
from modules.families.flux3.spec import FLUX3, MAX_TOKENS, OF_REFERENCES, PADDED_TO
from modules.families.kinds.identify import identify
from modules.families.parts.single_file.checkpoint import load_part_file
from modules.families.parts.single_file.moves import to_original
from modules.formats.lazy_tensors import lazy_state
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders.configs import config_fixture, laid_over
from tests.builders.flux3 import TINY, flux3_pipeline, tiny_transformer, transformer_of_diffusers, write_flux3_folder
from tests.builders.images import draw_image
from tests.builders.models import remove_weights
from tests.builders.pipelines import family_fixture, load_tiny, noise_of
from tests.builders.references import referenced_config
from tests.builders.runs import assert_equal_tensors, run
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

SHORT, LONG = "a disc", "a disc and a very long square, " * 4
config = config_fixture("tiny_flux3")
family = family_fixture("tiny_flux3", FLUX3.name)


# -- text


def test_prompts_are_padded_to_a_multiple_of_80_tokens(family: Flux3) -> None:
    states = family.encode_prompts([SHORT, LONG]).split()
    assert [len(s_LD) for s_LD in states] == [PADDED_TO, 2 * PADDED_TO]
    assert states[0][-1].any(), "the transformer attends to the padding's states"


def test_a_prompt_that_is_too_long_is_truncated_as_in_the_pipeline(family: Flux3) -> None:
    ids = family.reader.ids("a" * (MAX_TOKENS + 9))
    assert len(ids) == MAX_TOKENS
    assert ids[: len(family.reader.ids(""))] != family.reader.ids(""), "the template's end is not read"
    assert (
        family.reader.ids("").count(family.reader.tokenizer.id_of("<|im_start|>")) == TEMPLATE.after.count("start") + 1
    )


@torch.no_grad()
def test_the_padding_is_at_position_1_and_not_where_transformers_puts_it(family: Flux3) -> None:
    encoder, reader = family.modules["text_encoder"], family.reader
    [states] = family.encode_prompts([SHORT]).split()
    ids = reader.ids(SHORT)
    assert reader.padding is not None
    masked = torch.tensor([[1] * len(ids) + [0] * (PADDED_TO - len(ids))])
    padded = torch.tensor([[*ids, *[reader.padding.pad_id] * (PADDED_TO - len(ids))]])
    usual = encoder(input_ids=padded, attention_mask=masked, output_hidden_states=True).hidden_states
    joined = torch.cat([usual[layer][0] for layer in reader.layers], dim=-1)
    torch.testing.assert_close(states[: len(ids)], joined[: len(ids)])
    assert not torch.allclose(states[len(ids) :], joined[len(ids) :], atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("prompt", [SHORT, LONG])
def test_a_prediction_in_a_batch_with_another_length_is_that_of_diffusers_alone(
    family: Flux3, tiny_flux3: Path, prompt: str
) -> None:
    """diffusers' transformer has no mask, and its pipeline no batches of prompts."""
    noise, time = noise_of(family, batch=1, seed=0), torch.tensor([500.0])
    pipe = flux3_pipeline(tiny_flux3, family)
    states = TINY.text(pipe, prompt)["states"]
    rows, columns = (side // 2 for side in noise.shape[-2:])
    ids = torch.cartesian_prod(torch.arange(1), torch.arange(rows), torch.arange(columns), torch.arange(1)).float()
    ids[:, 1:3] *= 0.5
    of_text = torch.nn.functional.pad(torch.arange(states.shape[1], dtype=torch.float32)[:, None], (3, 0))
    theirs = transformer_of_diffusers(family.denoiser)(
        hidden_states=torch.nn.functional.pixel_unshuffle(noise, 2).flatten(2).transpose(1, 2),
        encoder_hidden_states=states,
        timestep=time / 1000,
        img_ids=ids,
        txt_ids=of_text,
    ).sample
    theirs = torch.nn.functional.pixel_shuffle(theirs.transpose(1, 2).unflatten(2, (rows, columns)), 2)
    text = family.encode_prompts([SHORT, LONG])
    ours = family.predict(noise.repeat(2, 1, 1, 1), time.repeat(2), text)[[SHORT, LONG].index(prompt)]
    torch.testing.assert_close(ours, theirs[0], rtol=1e-4, atol=1e-4)


# -- layers


def test_only_the_layers_of_references_are_not_reached(family: Flux3) -> None:
    for parameter in family.denoiser.parameters():
        parameter.requires_grad_(True)
    family.predict(
        noise_of(family, batch=1, seed=0), torch.tensor([500.0]), family.encode_prompts([SHORT])
    ).sum().backward()
    unreached = {n for n, p in family.denoiser.named_parameters() if p.grad is None or not p.grad.any()}
    assert unreached == {n for n, _ in family.denoiser.named_parameters() if n.startswith(OF_REFERENCES)}
    assert unreached == {n for n, _ in family.denoiser.named_parameters() if not family.reaches("transformer", n)}


# -- reference images


@pytest.fixture
def editing(tiny_flux3: Path) -> Flux3:
    loaded: Flux3 = load_tiny(tiny_flux3, FLUX3.name, variant="edit")
    return loaded


@torch.no_grad()
@pytest.mark.parametrize("sizes_px", [[(64, 64)], [(64, 48), (32, 96)]])
def test_a_sample_with_references_is_that_of_the_pipeline(
    editing: Flux3, tiny_flux3: Path, sizes_px: list[tuple[int, int]]
) -> None:
    pipe = flux3_pipeline(tiny_flux3, editing)
    pipe.update_components(
        guider=ClassifierFreeGuidance(guidance_scale=3.0), transformer=transformer_of_diffusers(editing.denoiser)
    )
    images = [draw_image(*size_px, number) for number, size_px in enumerate(sizes_px)]
    noise, generator = initial_noise((1, 32, 8, 8), seed=3, device=CPU)
    state = pipe(
        prompt=SHORT,
        image=images,
        latents=torch.nn.functional.pixel_unshuffle(noise, 2),
        num_inference_steps=3,
        height=64,
        width=64,
        output_type="latent",
    )
    theirs = torch.nn.functional.pixel_shuffle(state.get("latents"), 2)
    inputs = dict(zip(REFERENCES, map(latents_of, [editing] * len(images), images), strict=False))
    text, negative = (editing.encode_prompts([prompt]) for prompt in (SHORT, ""))

    def guided(noisy: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        wanted, other = (editing.predict(noisy, timestep.expand(1), states, inputs) for states in (text, negative))
        return other + 3.0 * (wanted - other)

    scheduler = scheduler_for(editing, "euler", Size(64, 64))
    ours = run_denoising_loop(guided, scheduler, noise, num_steps=3, generator=generator, on_step=lambda: None)
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def latents_of(family: Flux3, image: Image.Image) -> torch.Tensor:
    unit = torch.from_numpy(np.asarray(image.convert("RGB"), dtype=np.float32) / 255.0)
    return family.encode_images(2.0 * unit.permute(2, 0, 1)[None] - 1.0)


@torch.no_grad()
def test_references_change_no_prediction_of_another_caption(editing: Flux3) -> None:
    """In a batch of captions of unequal lengths, whose masks leave the references visible."""
    noise, times = noise_of(editing, batch=2, seed=0), torch.tensor([500.0, 250.0])
    references = {REFERENCES[0]: noise_of(editing, batch=2, seed=1), REFERENCES[1]: noise_of(editing, batch=2, seed=2)}
    both = editing.predict(noise, times, editing.encode_prompts([SHORT, LONG]), references)
    for row, prompt in enumerate((SHORT, LONG)):
        one = {name: latents[[row]] for name, latents in references.items()}
        alone = editing.predict(noise[[row]], times[[row]], editing.encode_prompts([prompt]), one)
        torch.testing.assert_close(both[[row]], alone, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(alone, editing.predict(noise[[row]], times[[row]], editing.encode_prompts([prompt])))


def test_an_editing_model_learns_in_the_layers_of_references_and_diffusers_loads_its_lora(
    tiny_flux3: Path, tmp_path: Path
) -> None:
    sections = {"adapter": {"layers": "blocks"}, "output": {"format": "diffusers"}, "sampling": {"at_end": True}}
    ran = run(laid_over(referenced_config(tmp_path, tiny_flux3, {}), sections))
    assert ran.finished.outcome == "finished"
    names = load_file(ran.finished.model_path).keys()
    pipe = flux3_pipeline(tiny_flux3, load_tiny(tiny_flux3, FLUX3.name))
    pipe.load_lora_weights(ran.finished.model_path, adapter_name="one")
    changed = {
        n for n, m in pipe.transformer.named_modules() if isinstance(m, LoraLayer) and m.lora_B["one"].weight.any()
    }
    assert len(changed) == sum("lora_A" in name for name in names)
    assert any(name.startswith("mode_blocks.image_cond.") for name in changed)


# -- files


def test_a_saved_folder_is_loaded_by_diffusers(config: Config, tmp_path: Path) -> None:
    """The base model's has no scheduler, as diffusers writes it; the saved one has the published one."""
    output = {"model_format": "diffusers", "destination": str(tmp_path / "tuned"), "dtype": "float32"}
    ran = run(laid_over(config, {"training": {"trains": "full"}, "output": output}))
    pipe = Flux3ModularPipeline.from_pretrained(ran.finished.model_path)
    pipe.load_components(["transformer", "vae", "scheduler"], torch_dtype=torch.float32)
    ours = load_tiny(Path(ran.finished.model_path), FLUX3.name)
    assert_equal_tensors(pipe.transformer.state_dict(), ours.denoiser.state_dict())
    assert_equal_tensors(pipe.vae.state_dict(), ours.vae.state_dict())
    assert pipe.scheduler.config.shift == 6.93
    index = json.loads((Path(ran.finished.model_path) / "modular_model_index.json").read_text())
    assert index["_blocks_class_name"] == "Flux3AutoBlocks"
    assert index["tokenizer"][:2] == ["transformers", "Qwen3VLProcessor"]
    before, after = (
        load_file(folder / "transformer" / "diffusion_pytorch_model.safetensors")
        for folder in (Path(config.model.base_model), Path(ran.finished.model_path))
    )
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed == {name for name in before if not name.startswith(OF_REFERENCES)}


def original_state(state: Mapping[str, torch.Tensor], *, flow_map: bool = False) -> dict[str, torch.Tensor]:
    """A tiny transformer under the names of the published checkpoint."""
    layout = TRANSFORMER_FILE.layout(dict(tiny_transformer(flow_map=flow_map).config))
    return {name: tensor.make() for name, tensor in to_original(layout.slots, lazy_state(dict(state))).items()}


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
def test_a_published_checkpoint_is_read_as_diffusers_converts_it(family: Flux3, tmp_path: Path, prefix: str) -> None:
    state, file = original_state(family.denoiser.state_dict()), tmp_path / "flux-3.safetensors"
    converted = convert_flux3_transformer_checkpoint_to_diffusers(dict(state))
    assert_equal_tensors(converted, family.denoiser.state_dict())
    save_file({f"{prefix}{n}": t for n, t in {**state, "repa_projectors.0.weight": torch.ones(2, 2)}.items()}, file)
    assert (identify(file).kind, identify(file).family) == ("part", FLUX3.name)
    read = load_part_file(file, FLUX3, FLUX3.denoiser, dict(family.denoiser.config), torch.float32)
    assert_equal_tensors(read.state_dict(), family.denoiser.state_dict())


def test_a_transformer_with_sound_and_video_is_named(family: Flux3, tmp_path: Path) -> None:
    further = {f"early_stream_modulations.{stream}.lin.weight": torch.ones(2, 2) for stream in ("video", "audio")}
    save_file({**original_state(family.denoiser.state_dict()), **further}, file := tmp_path / "flux-3.safetensors")
    kind = identify(file)
    assert (kind.kind, kind.family) == ("other_model", "")
    assert kind.sentence == "A FLUX.3 model with video, which is not supported."


# -- distilled models


@pytest.fixture
def klein(tmp_path: Path) -> Path:
    return write_flux3_folder(tmp_path / "klein", flow_map=True)


def errors_of(config: Config, model: dict[str, Any]) -> str:
    return " ".join(str(problem) for problem in check(laid_over(config, {"model": model})).errors)


def test_the_distilled_model_is_known_by_its_config_and_refused(config: Config, klein: Path) -> None:
    assert identify(klein).family == FLUX3.name
    found = errors_of(config, {"base_model": str(klein)})
    assert "seems to be a distilled model, by flow_map in its config" in found
    assert "Train on FLUX.3 klein base" in found
    assert "klein-base" not in errors_of(config, {})
    remove_weights(klein)
    with pytest.raises(DarkroomError, match="jumps to"):  # by its config, before weights are read
        load_tiny(klein, FLUX3.name)


@pytest.mark.parametrize("is_original", [True, False])
def test_a_file_of_the_distilled_transformer_is_known_by_its_tensors(
    config: Config, klein: Path, tmp_path: Path, is_original: bool
) -> None:
    """Its config is in no file: the embedding that only it has shows it."""
    state = load_file(klein / "transformer" / "diffusion_pytorch_model.safetensors")
    if is_original:
        state = original_state(state, flow_map=True)
    save_file(state, file := tmp_path / "mine.safetensors")
    assert identify(file).family == FLUX3.name
    found = architecture_of(str(file), FLUX3.name)
    assert found is not None
    assert found.configs["transformer"]["flow_map"]
    errors = check(laid_over(config, {"parts": {"transformer": {"file": str(file)}}})).errors
    assert any("a distilled model, by flow_map in its config" in str(problem) for problem in errors)
    errors = check(laid_over(config, {"sampling": {"model": str(file)}})).errors
    assert any("another architecture than the base model" in str(problem) for problem in errors)


def test_the_published_distilled_repository_is_refused_by_its_name(config: Config) -> None:
    distilled = FLUX3.distilled
    assert distilled is not None
    assert distilled.refuses(
        "black-forest-labs/flux-3-image-klein", distilled.evidence("black-forest-labs/flux-3-image-klein", {}, {})
    )
    assert not distilled.evidence("black-forest-labs/flux-3-image-klein-base", {"flow_map": False}, {})


def test_a_folder_of_another_family_needs_its_scheduler(family: Flux3, tiny_krea2: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_krea2, copy := tmp_path / "krea2")
    shutil.rmtree(copy / "scheduler")
    with pytest.raises(DarkroomError, match=r"scheduler_config\.json cannot be read"):
        load_tiny(copy, "krea2")
    assert family.scheduler_config()["shift"] == 6.93


# -- memory


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 11.5, 20.0), ("int8", 6.0, 14.0)])
def test_the_published_model_needs_the_estimated_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    """Its weights alone are 11.1 GB in bfloat16; nothing is measured yet."""
    parts = {"transformer": {"dtype": dtype, "checkpointing": "block"}, "text_encoder": {"dtype": dtype}}
    tree = {"model": {"family": "flux3", "base_model": "black-forest-labs/flux-3-image-klein-base"}, "parts": parts}
    tree |= {"training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most
