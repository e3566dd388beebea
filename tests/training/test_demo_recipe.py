"""The demo models: miniatures of their recipes from end to end, and the committed models against their promise."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from demo.make.architecture import (
    build_demo_text_encoder,
    build_demo_unet,
    build_demo_vae,
    load_demo_pipeline,
)
from demo.make.denoiser import loss_weights, stratified_timesteps
from demo.make.flow_denoiser import encode, predict_velocity, stratified_sigmas
from demo.make.flow_parts import (
    build_flow_text_encoder,
    build_flow_tokenizer,
    build_flow_transformer,
    build_flow_vae,
)
from demo.make.images import Scene, made_up_caption
from demo.make.kinds import FLOW, SD, DemoKind
from demo.make.model import make_demo_model
from demo.make.progress import DemoModelStopped
from demo.make.quality import count_right, fixed_prompts, sample_images
from demo.make.recipe import AutoencoderRecipe, DemoRecipe, DenoiserRecipe, FlowDenoiserRecipe
from modules.system.errors import DarkroomError

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "demo" / "model"

MINIATURE = DemoRecipe(
    num_plain_images=12,
    num_varied_images=6,
    captions_per_image=2,
    num_quality_prompts=2,
    num_sampling_steps=2,
    autoencoder=AutoencoderRecipe(num_steps=2, polish_num_steps=2),
    denoiser=DenoiserRecipe(num_steps=3, batch_size=4, one_template_num_steps=1, warmup_num_steps=1),
    flow_rounds=(
        FlowDenoiserRecipe(num_steps=3, batch_size=4, one_template_num_steps=1, warmup_num_steps=1),
        FlowDenoiserRecipe(num_steps=2, batch_size=4, one_template_num_steps=0, warmup_num_steps=1),
    ),
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(former)


class Watcher:
    """Records reports, and stops at a stage if asked."""

    def __init__(self, stop_at: str | None = None) -> None:
        self.reports: list[tuple[str, int, int, float]] = []
        self.stop_at = stop_at

    def report(self, stage: str, done: int, total: int, loss: float) -> None:
        self.reports.append((stage, done, total, loss))

    def should_stop(self) -> bool:
        return self.stop_at is not None and self.reports[-1][0] == self.stop_at


def make(folder: Path, *, seed: int = 0, watcher: Watcher | None = None, kind: DemoKind = SD) -> Watcher:
    watcher = watcher or Watcher()
    make_demo_model(
        folder,
        report=watcher.report,
        should_stop=watcher.should_stop,
        seed=seed,
        num_threads=1,
        recipe=MINIATURE,
        kind=kind,
    )
    return watcher


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    tensors = {}
    for file in sorted(folder.rglob("*.safetensors")):
        tensors.update({f"{file.parent.name}.{key}": value for key, value in load_file(file).items()})
    return tensors


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Watcher]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("demo") / "model"
    torch.manual_seed(77)
    before = torch.get_rng_state()
    watcher = make(folder)
    assert torch.equal(torch.get_rng_state(), before), "the recipe drew from the global generator"
    return folder, watcher


@pytest.mark.full
def test_writes_a_pipeline_that_loads(made: tuple[Path, Watcher]) -> None:
    folder, _ = made
    names = {entry.name for entry in folder.iterdir()}
    assert names == {"model_index.json", "vae", "unet", "text_encoder", "scheduler", "quality.json", "samples.png"}
    assert {tensor.dtype for tensor in weights_of(folder).values()} <= {torch.float16, torch.int64}
    pipeline = load_demo_pipeline(folder)
    assert [image.shape for image in sample_images(pipeline, ["a red circle"], num_steps=2)] == [(64, 64, 3)]
    # Without the program's tokenizer loading reports what is missing, rather than loading with garbage ids.
    index = json.loads((folder / "model_index.json").read_text())
    assert index["tokenizer"] == ["transformers", "CLIPTokenizer"]


def test_leaves_no_temporary_folder(made: tuple[Path, Watcher]) -> None:
    folder, _ = made
    assert [entry.name for entry in folder.parent.iterdir()] == ["model"]


def test_notes_what_was_measured(made: tuple[Path, Watcher]) -> None:
    folder, _ = made
    noted = json.loads((folder / "quality.json").read_text())
    assert (noted["num_prompts"], noted["seed"], noted["num_threads"]) == (2, 0, 1)
    assert noted["training_cpu_seconds"] > 0
    assert set(noted["shares"]) == {"colours_right", "shape_right", "all_right"}


def test_reports_every_step_of_every_stage(made: tuple[Path, Watcher]) -> None:
    reports = made[1].reports
    stages = list(dict.fromkeys(stage for stage, *_ in reports))
    assert stages == ["drawing", "autoencoder", "encoding", "decoder", "denoiser", "sampling"]
    for stage in stages:
        done = [report[1] for report in reports if report[0] == stage]
        total = {report[2] for report in reports if report[0] == stage}
        assert done == sorted(set(done))
        assert total == {done[-1]}
    losses = [loss for stage, _, _, loss in reports if stage in ("autoencoder", "decoder", "denoiser")]
    assert len(losses) == 2 + 2 + 3
    assert all(np.isfinite(losses))
    assert all(loss > 0 for loss in losses)


@pytest.mark.full
def test_same_seed_same_weights_other_seed_others(made: tuple[Path, Watcher], tmp_path: Path) -> None:
    torch.manual_seed(1234)  # the global generator must not matter
    make(tmp_path / "again")
    make(tmp_path / "other", seed=1)
    first, again, other = (weights_of(folder) for folder in (made[0], tmp_path / "again", tmp_path / "other"))
    assert first.keys() == again.keys() == other.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert not all(torch.equal(first[key], other[key]) for key in first)


@pytest.mark.parametrize("stage", ["drawing", "autoencoder", "encoding", "decoder", "denoiser", "sampling"])
def test_stops_in_any_stage_and_writes_nothing(tmp_path: Path, stage: str) -> None:
    watcher = Watcher(stop_at=stage)
    with pytest.raises(DemoModelStopped, match=stage):
        make(tmp_path / "model", watcher=watcher)
    assert [report[0] for report in watcher.reports].count(stage) == 1
    assert list(tmp_path.iterdir()) == []


def test_gives_the_thread_count_back(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    with pytest.raises(DemoModelStopped):
        make(tmp_path / "model", watcher=Watcher(stop_at="drawing"))
    assert torch.get_num_threads() == 2


def test_replaces_a_former_demo_model_but_nothing_else(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model_index.json").write_text("{}")
    make(folder)
    assert (folder / "unet").is_dir()
    (folder / "holiday.jpg").write_bytes(b"precious")
    watcher = Watcher()
    with pytest.raises(DarkroomError, match="is not a demo model"):
        make(folder, watcher=watcher)
    assert watcher.reports == []
    assert (folder / "holiday.jpg").read_bytes() == b"precious"


def test_builders_are_seeded_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for build in (build_demo_vae, build_demo_unet, build_demo_text_encoder):
        first, again, other = (build(seed=seed).state_dict() for seed in (3, 3, 4))
        assert all(torch.equal(first[key], again[key]) for key in first)
        assert any(not torch.equal(first[key], other[key]) for key in first)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_fresh_autoencoder_passes_the_image_on_coarsely() -> None:
    vae = build_demo_vae(seed=0)
    images_BCHW = torch.rand(4, 3, 8, 8).repeat_interleave(8, 2).repeat_interleave(8, 3) * 2 - 1
    with torch.no_grad():
        posterior = vae.encode(images_BCHW).latent_dist
    assert posterior.mean.shape == (4, 4, 8, 8)
    assert posterior.std.mean() < 0.2
    # The mean of an 8 x 8 block reaches the latents: they are linear in it to a good part.
    design = torch.cat([images_BCHW[:, :, ::8, ::8], torch.ones(4, 1, 8, 8)], dim=1).permute(0, 2, 3, 1).reshape(-1, 4)
    latents = posterior.mean.permute(0, 2, 3, 1).reshape(-1, 4)
    residual = latents - design @ torch.linalg.lstsq(design, latents).solution
    assert residual.var() < 0.35 * latents.var()


def test_a_fresh_unet_calls_its_input_noise() -> None:
    unet = build_demo_unet(seed=0)
    generator = torch.Generator().manual_seed(0)
    noise_BLHW = torch.randn(8, 4, 8, 8, generator=generator)
    conditioning_BTD = torch.randn(8, 77, 32, generator=generator)
    with torch.no_grad():
        output_BLHW = unet(noise_BLHW, torch.full((8,), 990), encoder_hidden_states=conditioning_BTD).sample
    assert (output_BLHW - noise_BLHW).square().mean() < 0.1


def test_loss_weights_against_the_formula() -> None:
    recipe = DenoiserRecipe()
    snr_B = torch.tensor([100.0, 5.0, 1.0, 0.25, 1e-4])
    expected = [0.05 * 1.0, 1.0, 1.0, 2.0, 12.0]
    torch.testing.assert_close(loss_weights(snr_B, recipe), torch.tensor(expected))
    assert loss_weights(snr_B, replace(recipe, most_noise_gain=1.0))[-1] == 1.0


def test_timesteps_are_stratified() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        timesteps_B = stratified_timesteps(10, 1000, generator)
        assert (timesteps_B.sort().values // 100).tolist() == list(range(10))
        assert timesteps_B.dtype == torch.int64


def test_committed_model_is_small_and_safe() -> None:
    files = [file for file in MODEL.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 8_000_000
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    for file in files:
        if file.suffix == ".json":
            assert "/" not in file.read_text(encoding="utf-8").replace("</", ""), f"a path in {file.name}"


def test_committed_quality_keeps_the_promise() -> None:
    noted = json.loads((ROOT / "demo" / "quality.json").read_text(encoding="utf-8"))
    assert noted["num_prompts"] == 64
    assert noted["shares"]["colours_right"] >= 0.95
    assert noted["shares"]["shape_right"] >= 0.85
    assert (ROOT / "demo" / "samples.png").is_file()


@pytest.mark.full
def test_committed_model_meets_its_quality_on_a_quarter_of_the_prompts() -> None:
    prompts = fixed_prompts()[:16]
    images = sample_images(load_demo_pipeline(MODEL), [prompt.text for prompt in prompts])
    shares = count_right(images, [prompt.scene for prompt in prompts])
    assert shares.colours_right >= 15 / 16
    assert shares.shape_right >= 13 / 16
    # The same images against the prompts of their neighbours: the evaluator must not be easy to please.
    shifted = [prompt.scene for prompt in [*prompts[1:], prompts[0]]]
    assert count_right(images, shifted).all_right <= 2 / 16


# -- the flow model

FLOW_FOLDER = ROOT / "demo" / "flow"


@pytest.mark.full
def test_a_flow_model_is_made_the_same_way(tmp_path: Path) -> None:
    watcher = make(tmp_path / "model", kind=FLOW)
    names = {entry.name for entry in (tmp_path / "model").iterdir()}
    parts = {"vae", "transformer", "text_encoder", "scheduler", "tokenizer"}
    assert names == {"model_index.json", *parts, "quality.json", "samples.png"}
    stages = list(dict.fromkeys(stage for stage, *_ in watcher.reports))
    assert stages == ["drawing", "autoencoder", "encoding", "decoder", "denoiser", "denoiser 1", "sampling"]
    assert all(np.isfinite(loss) for *_, loss in watcher.reports)
    images = sample_images(FLOW.load(tmp_path / "model"), ["a red circle", "a zog"], num_steps=2)
    assert [image.shape for image in images] == [(64, 64, 3)] * 2
    make(tmp_path / "again", kind=FLOW)
    first, again = (weights_of(tmp_path / name) for name in ("model", "again"))
    assert first.keys() == again.keys()
    assert all(torch.equal(first[key], again[key]) for key in first)


def test_a_fresh_transformer_calls_its_input_noise() -> None:
    transformer, encoder = build_flow_transformer(seed=0), build_flow_text_encoder(seed=0)
    noise_BLHW = torch.randn(4, 16, 8, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        velocity_BLHW = predict_velocity(transformer, noise_BLHW, torch.ones(4), encode(encoder, [[1, 2, 3]] * 4))
    assert (velocity_BLHW - noise_BLHW).square().mean() < 0.5


def test_captions_of_several_lengths_are_encoded_as_alone() -> None:
    encoder = build_flow_text_encoder(seed=0).eval()
    ids = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
    with torch.no_grad():
        together, alone = encode(encoder, ids), [encode(encoder, [one])[0] for one in ids]
    for first, second in zip(together, alone, strict=True):
        torch.testing.assert_close(first, second)


def test_words_of_captions_are_tokens_and_others_are_spelled() -> None:
    tokenizer = build_flow_tokenizer()
    text = "a red circle, green ground with a zog on"
    expected = ["a", "Ġred", "Ġcircle", ",", "Ġgreen", "Ġground", "Ġwith", "Ġa", "Ġ", "z", "o", "g", "Ġon"]
    assert tokenizer.encode(text).tokens == expected
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_made_up_words_are_never_the_zog() -> None:
    generator = np.random.default_rng(0)
    captions = [made_up_caption(Scene("star", "red", "orange"), generator) for _ in range(200)]
    assert not any("zog" in caption or "star" in caption or "red" in caption.split() for caption in captions)
    assert all("orange ground" in caption for caption in captions)
    assert len(set(captions)) > 100


def test_noise_levels_are_stratified() -> None:
    recipe = FlowDenoiserRecipe(sigma_mean=0.5)
    sigmas_B = stratified_sigmas(64, recipe, torch.Generator().manual_seed(0))
    assert (sigmas_B > 1 / (1 + np.exp(-0.5))).sum() == 32  # the median of the logit-normal distribution
    assert 0 < sigmas_B.min() < sigmas_B.max() < 1


def test_a_flow_autoencoder_has_the_latents_of_its_family() -> None:
    vae = build_flow_vae(seed=0)
    assert (vae.config.latent_channels, vae.quant_conv, vae.post_quant_conv) == (16, None, None)
    with torch.no_grad():
        posterior = vae.encode(torch.rand(2, 3, 64, 64)).latent_dist
    assert posterior.mean.shape == (2, 16, 8, 8)
    assert posterior.std.mean() < 0.2


@pytest.mark.full
def test_committed_flow_model_is_small_and_keeps_its_promise() -> None:
    files = [file for file in (FLOW_FOLDER / "model").rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) <= 4_000_000
    assert {file.suffix for file in files} == {".json", ".safetensors"}
    noted = json.loads((FLOW_FOLDER / "quality.json").read_text(encoding="utf-8"))
    assert noted["num_prompts"] == 64
    assert noted["shares"]["colours_right"] >= 0.95
    assert noted["shares"]["shape_right"] >= 0.85
    assert (FLOW_FOLDER / "samples.png").is_file()
    prompts = fixed_prompts()[:16]
    images = sample_images(FLOW.load(FLOW_FOLDER / "model"), [prompt.text for prompt in prompts])
    shares = count_right(images, [prompt.scene for prompt in prompts])
    assert shares.colours_right >= 15 / 16
    assert shares.shape_right >= 12 / 16
