"""Ideogram 4 alone: its text, positions, latents, noise levels, second transformer, files and memory; the rest is in
tests/training/flow.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from diffusers.models.transformers.transformer_ideogram4 import Ideogram4MRoPE
from diffusers.pipelines.ideogram4.pipeline_ideogram4 import _logit_normal_sigmas, _resolution_aware_mu
from safetensors.torch import load_file, save_file

from modules.config.codec import decode, encode
from modules.config.imports.ai_toolkit import tree_of_ai_toolkit
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.config.usage import unread_parts
from modules.data.buckets import Size
from modules.data.conditioning import Conditioning
from modules.data.wildcards import expand
from modules.diffusion.timesteps.sampling import TimestepSampling
from modules.families.ideogram4.model import Ideogram4, to_latents, to_tokens
from modules.families.ideogram4.spec import CONVENTION, GUIDE, IDEOGRAM4
from modules.families.ideogram4.transformer import Rotations
from modules.families.kinds.identify import identify
from modules.families.parts.single_file.checkpoint import empty_part, load_part_file
from modules.families.parts.single_file.models import shipped_configs
from modules.families.registry import files_of
from modules.sampling.denoising_loop import scheduler_for
from modules.sampling.prediction import guided_prediction
from modules.system.errors import DarkroomError
from modules.system.factories import load_factory
from tests.builders.configs import config_fixture, laid_over
from tests.builders.ideogram4 import TINY, ideogram4_pipeline, in_their_tokens, theirs_of
from tests.builders.pipelines import load_tiny, noise_of
from tests.builders.runs import errors_of, run
from trainer.events import BackupSaved
from trainer.job import Job
from trainer.jobs.sample import SampleChoices, SampleRequest
from trainer.jobs.sample_engine import SamplingEngine
from trainer.methods.rollouts import encode_prompts
from trainer.preflight import check
from trainer.preflight.fit import fit_budget
from trainer.preflight.run_budget import budget_of, memory_estimate, on_a_gpu

config = config_fixture("tiny_ideogram4", {"training": {"epochs": 1}})
TIMES = torch.tensor([250.0, 700.0])
PROMPTS = ["a disc", "a disc and a very long square"]


@pytest.fixture(scope="module")
def family(tiny_ideogram4: Path) -> Ideogram4:
    family: Ideogram4 = load_tiny(tiny_ideogram4, IDEOGRAM4.name)
    return family


# -- text and positions


@torch.no_grad()
def test_a_batch_is_what_diffusers_predicts_for_its_padded_sequence(family: Ideogram4, tiny_ideogram4: Path) -> None:
    """Its padding is before the text, ours behind it; each prompt alone gives the same, too."""
    noisy = noise_of(family, batch=2, seed=0)
    ours = family.predict(noisy, TIMES, family.encode_prompts(PROMPTS))
    pipe, grid = ideogram4_pipeline(tiny_ideogram4, family), noisy.shape[-1] // 2
    text, positions, segments, roles = pipe.encode_prompt(PROMPTS, grid, grid, 64, torch.device("cpu"))
    packed = torch.nn.functional.pad(in_their_tokens(noisy), (0, 0, 64, 0))
    arguments = (packed, 1.0 - TIMES / 1000, text, positions, segments, roles)
    output = theirs_of(family.denoiser)(*arguments, return_dict=False)[0][:, 64:]
    torch.testing.assert_close(ours, -to_latents(output, *noisy.shape[-2:]), rtol=1e-4, atol=1e-5)
    for index, prompt in enumerate(PROMPTS):
        alone = family.predict(noisy[index : index + 1], TIMES[index : index + 1], family.encode_prompts([prompt]))
        torch.testing.assert_close(ours[index : index + 1], alone, rtol=0, atol=1e-5)


def test_latents_are_packed_as_in_the_pipeline(family: Ideogram4) -> None:
    latents = noise_of(family, batch=2, seed=0)[..., :4]
    assert torch.equal(to_tokens(latents), in_their_tokens(latents))
    assert torch.equal(to_latents(to_tokens(latents), *latents.shape[-2:]), latents)


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_positions_are_exact_under_autocast_and_in_bfloat16(dtype: torch.dtype) -> None:
    """In bfloat16 the rows of an image would have one position: gray images, as with diffusers before 0.42."""
    rows = torch.arange(128) + 65536
    ids = torch.stack([torch.full_like(rows, 65536), rows, rows], dim=-1)[None]
    expected = Ideogram4MRoPE(256, 5_000_000, (24, 20, 20))(ids)
    with torch.autocast("cpu", torch.bfloat16):
        cosines, sines = Rotations(256, 5e6, (24, 20, 20)).to(dtype)(ids)
    torch.testing.assert_close((cosines, sines), expected, rtol=0, atol=1e-6)
    assert cosines.unique(dim=1).shape[1] == 128
    assert len(rows.to(torch.bfloat16).unique()) == 1


@torch.no_grad()
def test_a_prediction_under_autocast_is_that_without(family: Ideogram4) -> None:
    text, noisy = family.encode_prompts(PROMPTS), noise_of(family, batch=2, seed=0)
    plain = family.predict(noisy, TIMES, text)
    with torch.autocast("cpu", torch.bfloat16):
        cast = family.predict(noisy, TIMES, text)
    assert (cast.float() - plain).norm() < 0.03 * plain.norm()


def test_a_caption_in_json_is_no_wildcard() -> None:
    elements = [{"type": "obj", "desc": "a disc"}, {"type": "text", "desc": "OPEN"}]
    caption = json.dumps({"high_level_description": "x", "compositional_deconstruction": {"elements": elements}})
    assert expand(caption, seed=1).text == caption


def test_a_text_encoder_with_too_few_layers_is_refused(tiny_ideogram4: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_ideogram4, tmp_path / "model")
    file = tmp_path / "model" / "text_encoder" / "config.json"
    settings = json.loads(file.read_text())
    settings["text_config"]["num_hidden_layers"] = 30
    file.write_text(json.dumps(settings))
    with pytest.raises(DarkroomError, match="has 30 layers instead of 36"):
        load_tiny(tmp_path / "model", IDEOGRAM4.name)


def test_captions_cached_with_fewer_tokens_are_not_used(family: Ideogram4, tiny_ideogram4: Path) -> None:
    caption = "a disc and a square " * 10
    shorter: Ideogram4 = load_tiny(tiny_ideogram4, IDEOGRAM4.name, text_tokens=64)
    assert shorter.encode_prompts([caption]).lengths == (64,) < family.encode_prompts([caption]).lengths
    assert shorter.text_identity() != family.text_identity()


def test_the_published_text_encoder_is_that_of_qwen3_vl_8b_without_the_vision_tower() -> None:
    part = next(part for part in IDEOGRAM4.parts if part.role == "text_encoder")
    weights = empty_part(load_factory(part.model_class), shipped_configs("ideogram4")[part.name]).parameters()
    assert sum(tensor.numel() for tensor in weights) == 7_568_405_504


# -- latents and noise levels


def test_the_statistics_of_latents_have_the_places_first(family: Ideogram4) -> None:
    latents = family.encode_images(torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1)
    encoded = family.vae.encode(torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 2 - 1)
    tokens = in_their_tokens(encoded.latent_dist.mode())
    deviations = (family.vae.bn.running_var + family.vae.config.batch_norm_eps).sqrt()
    expected = to_latents((tokens - family.vae.bn.running_mean) / deviations, *latents.shape[-2:])
    torch.testing.assert_close(latents, expected, rtol=1e-4, atol=1e-5)


def test_a_vae_of_flux2_is_refused(config: Config, tiny_ideogram4: Path, tiny_flux2_klein: Path) -> None:
    """It has the same shapes, but other statistics, in another order."""
    vae = str(tiny_flux2_klein / "vae" / "diffusion_pytorch_model.safetensors")
    with pytest.raises(DarkroomError, match=r"is FLUX\.2's, with FLUX\.2's statistics"):
        load_tiny(tiny_ideogram4, IDEOGRAM4.name, part_files={"vae": vae})


@pytest.mark.parametrize("size", [Size(512, 512), Size(2048, 1024), Size(1024, 768)])
@pytest.mark.parametrize("num_steps", [1, 4, 48])
def test_samples_have_the_noise_levels_of_the_pipeline(family: Ideogram4, size: Size, num_steps: int) -> None:
    scheduler = scheduler_for(family, "euler", size)
    scheduler.set_timesteps(num_steps)
    mean = _resolution_aware_mu(size.height_px, size.width_px, 0.0)
    expected = _logit_normal_sigmas(num_steps, mean, 1.5)
    torch.testing.assert_close(scheduler.timesteps / 1000, expected, rtol=1e-5, atol=1e-7)


def test_timesteps_are_drawn_around_the_mean_of_the_size() -> None:
    """Logit-normal with the mean 0.5 log(pixels / 512^2) and the standard deviation 1.5 (the presets)."""
    sampling = TimestepSampling(distribution="logit_normal", weight=0.5, is_dynamic=True)
    shift = IDEOGRAM4.process.size_shift(width_px=1536, height_px=1024, own_px=1024)
    cumulative = sampling.cumulative(num_timesteps=1000, size_shift=shift)
    mean = 0.5 * math.log(1536 * 1024 / 512**2)
    for index in (100, 500, 900):
        odds = math.log(index / (1000 - index))
        assert cumulative[index] == pytest.approx(0.5 * math.erfc((mean - odds) / (1.5 * math.sqrt(2))), abs=1e-6)


def test_the_shift_of_the_scheduler_config_is_not_that_of_the_pipeline() -> None:
    assert CONVENTION.with_scheduler({"shift": 3.0}).shift_at(1024, 1024) == 2.0


# -- the second transformer


def calls_of(family: Ideogram4) -> tuple[list[str], list[Any]]:
    called: list[str] = []
    parts = {name: family.modules[name] for name in ("transformer", GUIDE)}
    handles = [m.register_forward_pre_hook(lambda *_, name=n: called.append(name)) for n, m in parts.items()]
    return called, handles


@torch.no_grad()
def test_the_second_transformer_guides_and_reads_no_prompt(family: Ideogram4) -> None:
    size, noisy = Size(64, 64), noise_of(family, batch=2, seed=0)
    text, empty = family.encode_prompts(PROMPTS), family.encode_prompts([""])
    called, handles = calls_of(family)
    guided = guided_prediction(family, text, empty, size=size, guidance=3.0)(noisy, TIMES[0])
    assert called == [GUIDE, "transformer"]
    plain = family.predict(noisy, TIMES[:1].expand(2), text)
    without = family.predict(noisy, TIMES[:1].expand(2), family.without_prompt(text))
    for handle in handles:
        handle.remove()
    assert called[2:] == ["transformer", GUIDE]
    torch.testing.assert_close(guided, without + 3.0 * (plain - without), rtol=1e-4, atol=1e-5)
    negatives = [family.encode_guided(negative, PROMPTS[0]) for negative in ("", "blurry")]
    assert torch.equal(*(negative.states_BLD for negative in negatives))
    again = family.conditioning_from(negatives[0].tensors())
    assert again.lengths == negatives[0].lengths
    assert again.lengths[0] == 0


@torch.no_grad()
def test_a_rollout_that_is_guided_by_it_encodes_no_empty_prompt(family: Ideogram4) -> None:
    encoded: list[str] = []

    def encode(prompts: Sequence[str]) -> Conditioning:
        encoded.extend(prompts)
        return family.encode_prompts(prompts)

    size, noisy = Size(64, 64), noise_of(family, batch=2, seed=0)
    text, none = encode_prompts(PROMPTS, Mock(family=family, encode=encode))
    assert encoded == list(PROMPTS)
    found, expected = (
        guided_prediction(family, text, empty, size=size, guidance=3.0)(noisy, TIMES[0])
        for empty in (none, family.encode_prompts([""]))
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "dtypes", [("bfloat16", "float32"), pytest.param(("float32", "bfloat16"), marks=pytest.mark.full)]
)
def test_both_may_have_another_dtype(dtypes: tuple[str, str], config: Config) -> None:
    """A run in bfloat16 has no autocast if the first one's weights are bfloat16."""
    first, second = dtypes
    prompt = {"prompt": "a disc", "steps": 1, "guidance": 3.0, "width_px": 64, "height_px": 64}
    parts = {"transformer": {"dtype": first}, GUIDE: {"dtype": second}}
    changes = {"parts": parts, "sampling": {"at_end": True, "prompts": [prompt]}}
    ran = run(laid_over(config, {**changes, "training": {"precision": "bfloat16"}, "adapter": {"dtype": "bfloat16"}}))
    assert ran.finished.outcome == "finished"


def test_without_it_the_first_one_guides(config: Config, tiny_ideogram4: Path) -> None:
    family: Ideogram4 = load_tiny(tiny_ideogram4, IDEOGRAM4.name, left_out={GUIDE})
    assert GUIDE not in family.parts
    assert min(family.encode_guided("blurry", "a disc").lengths) > 0
    prompt = {"prompt": "a disc", "steps": 2, "guidance": 3.0, "width_px": 64, "height_px": 64}
    samples = {"at_end": True, "prompts": [prompt]}
    left_out = laid_over(config, {"parts": {GUIDE: {"include": False}}, "sampling": samples})
    assert not check(left_out).errors
    assert run(left_out).finished.outcome == "finished"


def test_it_is_read_only_if_samples_are_guided(config: Config) -> None:
    """A LoRA's run without guided samples has it neither in memory nor in the estimate."""
    prompt = {"prompt": "a disc", "steps": 2, "width_px": 64, "height_px": 64}
    unguided, guided = (
        laid_over(config, {"sampling": {"at_end": True, "prompts": [{**prompt, "guidance": guidance}]}})
        for guidance in (1.0, 3.0)
    )
    assert unread_parts(unguided) == (GUIDE,)
    assert unread_parts(guided) == ()
    assert unread_parts(laid_over(unguided, {"training": {"trains": "full"}})) == ()
    assert run(unguided).finished.outcome == "finished"


def test_a_backup_of_a_run_that_did_not_read_it_is_sampled_with_it(config: Config, tmp_path: Path) -> None:
    ran = run(laid_over(config, {"backup": {"at_end": True}}))
    [backup] = {Path(saved.path) for saved in ran.of(BackupSaved)}
    prompt = SamplePrompt(prompt="a disc", width_px=64, height_px=64, steps=1, guidance=3.0)
    asked = laid_over(config, {"sampling": {"prompts": [prompt.model_dump()]}})
    choices = SampleChoices(folder=str(tmp_path / "samples"), backup=str(backup))
    done = SamplingEngine().sample(SampleRequest(asked, choices, 0), Job(lambda _event: None))
    assert Path(done.paths[0]).is_file()


@pytest.mark.full
def test_advice_shrinks_it_with_the_first_one() -> None:
    prompt = {"prompt": "a", "width_px": 512, "height_px": 512}
    tree: dict[str, Any] = {"model": {"family": "ideogram4", "base_model": "ideogram-ai/ideogram-4-fp8"}}
    tree |= {"training": {"precision": "bfloat16"}, "sampling": {"at_end": True, "prompts": [prompt]}}
    tree |= {"parts": {"text_encoder": {"dtype": "int8"}}}
    found = budget_of(decode({"darkroom_version": 7, **tree}).config, {Size(512, 512): 10})
    assert found is not None
    fitted = fit_budget(on_a_gpu(found), card_bytes=12_000_000_000)
    assert fitted.fits
    first, second = (fitted.config.part(name) for name in ("transformer", GUIDE))
    assert first.dtype == second.dtype != "float32"
    assert second.offload_fraction >= first.offload_fraction > 0


def test_a_fine_tune_leaves_it_as_it_was(config: Config, tiny_ideogram4: Path, tmp_path: Path) -> None:
    output = {"model_format": "diffusers", "destination": str(tmp_path / "tuned"), "dtype": "float32"}
    saved = Path(run(laid_over(config, {"training": {"trains": "full"}, "output": output})).finished.model_path)
    stored = {
        (folder, part): load_file(folder / part / "diffusion_pytorch_model.safetensors")
        for folder in (tiny_ideogram4, saved)
        for part in ("transformer", GUIDE, "vae")
    }
    before, after = (stored[folder, GUIDE] for folder in (tiny_ideogram4, saved))
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())
    assert torch.equal(stored[saved, "vae"]["bn.running_mean"], stored[tiny_ideogram4, "vae"]["bn.running_mean"])
    name = "layers.0.attention.to_q.weight"
    assert not torch.equal(stored[tiny_ideogram4, "transformer"][name], stored[saved, "transformer"][name])
    index = json.loads((saved / "model_index.json").read_text())
    assert index[GUIDE] == ["diffusers", "Ideogram4Transformer2DModel"]


# -- files


def native(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A transformer's weights as they were first published."""
    made = {}
    for name, tensor in state.items():
        if ".to_q." in name:
            pieces = [state[name.replace("to_q", f"to_{letter}")] for letter in "qkv"]
            made[name.replace("to_q", "qkv")] = torch.cat(pieces)
        elif ".to_k." not in name and ".to_v." not in name:
            made[name.replace("attention.to_out.0", "attention.o")] = tensor.clone()
    return made


def in_float8(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The matrices of linear layers in float8 with a scale for each row, the rest in bfloat16."""
    made = {}
    for name, tensor in state.items():
        if tensor.dim() == 2 and name.endswith(".weight") and "indicator" not in name:
            scales = tensor.abs().amax(dim=1) / 448.0
            made[name] = (tensor / scales[:, None]).to(torch.float8_e4m3fn)
            made[name.replace(".weight", ".weight_scale")] = scales
        else:
            made[name] = tensor.bfloat16()
    return made


@pytest.mark.parametrize("prefix", ["", "model.diffusion_model."])
@pytest.mark.parametrize("part_name", ["transformer", GUIDE])
def test_a_file_of_a_transformer_is_read(prefix: str, part_name: str, family: Ideogram4, tmp_path: Path) -> None:
    """Both have the same names."""
    module, file = family.modules[part_name], tmp_path / "ideogram4.safetensors"
    save_file({f"{prefix}{name}": tensor for name, tensor in native(module.state_dict()).items()}, file)
    found = identify(file)
    assert (found.kind, found.family) == ("part", IDEOGRAM4.name)
    part = next(part for part in IDEOGRAM4.parts if part.name == part_name)
    read = load_part_file(file, IDEOGRAM4, part, dict(module.config), torch.float32)
    assert all(torch.equal(tensor, module.state_dict()[name]) for name, tensor in read.state_dict().items())


def test_a_part_is_in_float8_if_any_of_its_files_has_scales(
    family: Ideogram4, tiny_ideogram4: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(tiny_ideogram4, folder)
    place, name = folder / GUIDE, "diffusion_pytorch_model"
    (place / f"{name}.safetensors").unlink()
    state = in_float8(dict(family.modules[GUIDE].state_dict()))
    plain = {key: tensor for key, tensor in state.items() if tensor.dtype == torch.bfloat16}
    shards = (plain, {key: tensor for key, tensor in state.items() if key not in plain})
    files = [f"{name}-0000{number}-of-00002.safetensors" for number in (1, 2)]
    for file, tensors in zip(files, shards, strict=True):
        save_file(tensors, place / file)
    weight_map = {key: file for file, tensors in zip(files, shards, strict=True) for key in tensors}
    (place / f"{name}.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    ours = load_tiny(folder, IDEOGRAM4.name).modules[GUIDE].state_dict()
    theirs = family.modules[GUIDE].state_dict()
    assert all(torch.allclose(ours[key], theirs[key], rtol=0.07, atol=0.01) for key in theirs)
    index = place / f"{name}.safetensors.index.json"
    shutil.copyfile(index, place / "other.safetensors.index.json")  # any of both was read
    with pytest.raises(DarkroomError, match="and more than one index"):
        load_tiny(folder, IDEOGRAM4.name)
    for file in place.glob("*.index.json"):
        file.unlink()
    with pytest.raises(DarkroomError, match="and no index"):
        load_tiny(folder, IDEOGRAM4.name)


@pytest.mark.parametrize("is_native", [False, True])
def test_the_published_folder_in_float8_is_read_and_trains(
    is_native: bool, config: Config, family: Ideogram4, tiny_ideogram4: Path, tmp_path: Path
) -> None:
    """Its matrices of queries, keys and values were in one piece at first."""
    folder = tmp_path / "ideogram-4-fp8"
    shutil.copytree(tiny_ideogram4, folder)
    for part in ("transformer", GUIDE):
        state = dict(family.modules[part].state_dict())
        state = native(state) if is_native else state
        save_file(in_float8(state), folder / part / "diffusion_pytorch_model.safetensors")
    read: Ideogram4 = load_tiny(folder, IDEOGRAM4.name)
    for part in ("transformer", GUIDE):
        ours, theirs = read.modules[part].state_dict(), family.modules[part].state_dict()
        assert ours.keys() == theirs.keys()
        assert all(torch.allclose(ours[name], theirs[name], rtol=0.07, atol=0.01) for name in ours)
    for dtype in ("float32", "float8") if is_native else ():
        trained = laid_over(config, {"model": {"base_model": str(folder)}, "parts": {"transformer": {"dtype": dtype}}})
        assert not check(trained).errors
        assert run(trained).finished.outcome == "finished"


def test_a_base_model_of_files_alone_needs_no_second_transformer(
    config: Config, family: Ideogram4, tiny_ideogram4: Path, tmp_path: Path
) -> None:
    files = {"transformer": tmp_path / "ideogram4.safetensors", GUIDE: tmp_path / "ideogram4_unconditional.safetensors"}
    for part, file in files.items():
        save_file(native(family.modules[part].state_dict()), file)
    with_second, without = (
        laid_over(config, {"parts": {"transformer": {"file": str(files["transformer"])}, GUIDE: second}})
        for second in ({"file": str(files[GUIDE])}, {"include": False})
    )
    for one in (with_second, without):
        assert not check(one).errors
        assert run(one).finished.outcome == "finished"
    vae = tiny_ideogram4 / "vae" / "diffusion_pytorch_model.safetensors"
    assert "contains no Uncond" in errors_of(config, parts={GUIDE: {"file": str(vae)}})[f"parts.{GUIDE}.file"]


# -- memory, the cache, configs of other programs


@pytest.mark.parametrize(("dtype", "least", "most"), [("bfloat16", 19.5, 24.5), ("int8", 11.0, 15.0)])
def test_the_published_model_needs_this_memory_at_1024_px(dtype: str, least: float, most: float) -> None:
    parts = {name: {"dtype": dtype, "checkpointing": "block"} for name in ("transformer", "text_encoder")}
    tree: dict[str, Any] = {"model": {"family": "ideogram4", "base_model": "ideogram-ai/ideogram-4-fp8"}}
    tree |= {"parts": parts, "training": {"precision": "bfloat16"}, "data": {"resolution_px": [1024]}}
    estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
    assert estimate is not None
    assert least < estimate.peak.total_bytes / 1e9 < most


def test_the_check_states_the_size_of_a_cached_caption(config: Config) -> None:
    """At the published size a token has 53,248 values."""
    tree: dict[str, Any] = {"model": {"family": "ideogram4", "base_model": "ideogram-ai/ideogram-4-fp8"}}
    tree |= {"concepts": encode(config)["concepts"], "training": {"precision": "bfloat16"}}
    tree |= {"data": {"text_cache": True, "cache_dtype": "bfloat16"}}
    [note] = [p for p in check(decode({"darkroom_version": 7, **tree}).config).problems if p.path == "data.text_cache"]
    assert note.severity == "info"
    assert "takes 107 kB in the cache: with 512 tokens, about 55 MB for a caption" in note.message


def test_guided_samples_need_both_transformers() -> None:
    prompt = {"prompt": "a", "width_px": 1024, "height_px": 1024}
    sizes = {}
    for guidance in (1.0, 7.0):
        tree: dict[str, Any] = {"model": {"family": "ideogram4", "base_model": "ideogram-ai/ideogram-4-fp8"}}
        tree |= {"parts": {name: {"dtype": "bfloat16"} for name in ("transformer", "text_encoder", GUIDE)}}
        tree |= {"sampling": {"at_end": True, "prompts": [{**prompt, "guidance": guidance}]}}
        estimate = memory_estimate(decode({"darkroom_version": 7, **tree}).config, {Size(1024, 1024): 10})
        assert estimate is not None
        sampling = estimate.phase("sampling")
        assert sampling is not None
        sizes[guidance] = dict(sampling.parts)["weights"]
    assert sizes[7.0] - sizes[1.0] == pytest.approx(2 * 9.279e9, rel=0.01)


def test_onetrainers_settings_of_the_second_transformer_are_read() -> None:
    theirs = {"weight_dtype": "FLOAT_8", "train": False, "model_name": "guide.safetensors", "offload_fraction": 0.5}
    tree = TINY.onetrainer["24 GB"].tree(unconditional_transformer=theirs)
    loaded = decode(tree)
    assert not [p for p in loaded.problems if p.severity != "info"]
    part = loaded.config.part(GUIDE)
    assert (part.dtype, part.file, part.offload_fraction) == ("float8", "guide.safetensors", 0.5)
    assert decode(encode(loaded.config)).config == loaded.config


def test_a_config_of_ai_toolkit_is_imported() -> None:
    model = {"name_or_path": "ideogram-ai/ideogram-4-fp8", "arch": "ideogram4", "quantize": True, "qtype": "qfloat8"}
    process = {
        "type": "diffusion_trainer",
        "model": model,
        "network": {"type": "lora", "linear": 32, "linear_alpha": 32},
        "train": {"noise_scheduler": "flowmatch", "timestep_type": "sigmoid", "lr": 1e-4},
    }
    notes: list[Any] = []
    config = decode(
        tree_of_ai_toolkit({"job": "extension", "config": {"name": "x", "process": [process]}}, notes)
    ).config
    assert (config.family.name, config.model.base_model) == (IDEOGRAM4.name, "ideogram-ai/ideogram-4-fp8")
    assert (config.adapter.rank, config.part("transformer").dtype) == (32, "float8")


def test_the_shipped_index_has_no_prompt_enhancer() -> None:
    assert files_of(IDEOGRAM4.name).models[0].index["prompt_enhancer_head"] == [None, None]
