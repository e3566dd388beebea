"""Editing models: a reference image with each image, trained, sampled and compared with diffusers."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.sections.evaluation import SamplePrompt
from modules.config.usage import num_references
from modules.data.buckets import Size, resize_crop_for
from modules.data.cache.inputs import KnownKeys, reader_of
from modules.data.companions import Companion
from modules.data.conditioning import SizeConditioning
from modules.data.example import Example
from modules.data.inputs import EDITED_IMAGE, INPUTS
from modules.data.source_image import SourceImage
from modules.data.transforms.recipe import Colour, Recipe, plain_recipe
from modules.data.versions import ImageVersion
from modules.families.flux.model import Flux
from modules.families.flux.spec import FLUX
from modules.families.kinds.identify import identify
from modules.formats.headers import read_header
from modules.sampling.denoising_loop import initial_noise, run_denoising_loop, scheduler_for
from modules.sampling.prediction import read_sample_image, with_guidance
from modules.system.devices import CPU
from tests.builders.configs import laid_over, small_config
from tests.builders.flux import flux_pipeline
from tests.builders.images import draw_image
from tests.builders.pipelines import load_tiny, sample_with_ours
from tests.builders.runs import assert_equal_tensors, errors_of, losses, run
from trainer.data.preview import ConceptPreview
from trainer.events import BackupSaved, CacheProgress, SampleReady, ValidationFinished
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate

SIZE, NUM_IMAGES = Size(64, 64), 4
PLACES = ("0.png", "1.png", "2.png", "below/3.png")
PROMPT = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 2.5, "sampler": "euler"}


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """A folder `after` with images, and a folder `before` with their references, of the same names as JPEG files."""
    for name in ("after", "before"):
        (tmp_path / "pairs" / name / "below").mkdir(parents=True)
    for number in range(NUM_IMAGES):
        place = "below" if number == 3 else "."
        image = draw_image(64, 64, number)
        image.transpose(Image.Transpose.FLIP_TOP_BOTTOM).save(tmp_path / "pairs" / "after" / place / f"{number}.png")
        (tmp_path / "pairs" / "after" / place / f"{number}.txt").write_text("turned", encoding="utf-8")
        image.save(tmp_path / "pairs" / "before" / place / f"{number}.jpg", quality=100)
    return tmp_path / "pairs"


@pytest.fixture
def config(tiny_flux_kontext: Path, pairs: Path, tmp_path: Path) -> Config:
    concept = {"path": str(pairs / "after"), "include_subfolders": True}
    return laid_over(
        small_config(tmp_path, model=tiny_flux_kontext, images=pairs / "after"),
        {
            "model": {"variant": "edit", "family": {"text_tokens": 16}},
            "concepts": [{**concept, "image": {"conditioning_folder": str(pairs / "before")}}],
            "parts": {name: {"train": False} for name in FLUX.names_of("text_encoder")},
            "training": {"epochs": 1, "batch_size": 2, "learning_rate": 0.01},
            "output": {"dtype": "float32"},
        },
    )


# -- Kontext in diffusers


@pytest.fixture
def kontext(tiny_flux_kontext: Path) -> Flux:
    family: Flux = load_tiny(tiny_flux_kontext, FLUX.name, variant="edit")
    return family


@torch.no_grad()
def test_one_prediction_is_that_of_the_pipeline(tiny_flux_kontext: Path, kontext: Flux) -> None:
    """The reference may have another size than the image."""
    pipe, text = flux_pipeline(tiny_flux_kontext, kontext), kontext.encode_prompts(["a disc", "a square"])
    noisy = torch.randn(2, 16, 8, 12, generator=torch.Generator().manual_seed(1))
    reference = torch.randn(2, 16, 10, 6, generator=torch.Generator().manual_seed(2))
    tokens, references, ids, reference_ids = pipe.prepare_latents(
        reference, 2, 16, 64, 96, torch.float32, CPU.torch, latents=pipe._pack_latents(noisy, 2, 16, 8, 12)
    )
    theirs = kontext.denoiser(
        hidden_states=torch.cat([tokens, references], dim=1),
        timestep=torch.tensor([0.5, 0.25]),
        guidance=torch.ones(2),
        pooled_projections=text.rows["pooled"],
        encoder_hidden_states=text.rows["states"],
        txt_ids=torch.zeros(text.rows["states"].shape[1], 3),
        img_ids=torch.cat([ids, reference_ids]),
        return_dict=False,
    )[0][:, : tokens.shape[1]]
    ours = kontext.predict(noisy, torch.tensor([500.0, 250.0]), text, {EDITED_IMAGE: reference})
    torch.testing.assert_close(ours, pipe._unpack_latents(theirs, 64, 96, 8), rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours, kontext.predict(noisy, torch.tensor([500.0, 250.0]), text), atol=1e-3)


@torch.no_grad()
@pytest.mark.parametrize("has_reference", [True, False])
def test_a_sample_is_that_of_the_pipeline(
    tiny_flux_kontext: Path, kontext: Flux, tmp_path: Path, has_reference: bool
) -> None:
    file = tmp_path / "before.png"
    draw_image(64, 64, 1).save(file)
    pipe = flux_pipeline(tiny_flux_kontext, kontext)
    start, generator = initial_noise((1, 16, 8, 8), seed=3, device=CPU)
    with Image.open(file) as image:
        theirs = pipe(
            image=image if has_reference else None,
            prompt=["a disc"],
            latents=pipe._pack_latents(start, 1, 16, 8, 8),
            num_inference_steps=3,
            guidance_scale=2.5,
            height=64,
            width=64,
            max_area=64 * 64,
            _auto_resize=False,  # the preferred sizes have about a million pixels
            output_type="latent",
        ).images
    latents = {EDITED_IMAGE: kontext.encode_images(read_sample_image(file, SIZE))} if has_reference else {}
    text = with_guidance(kontext, kontext.encode_prompts(["a disc"]), 2.5)
    ours = run_denoising_loop(
        lambda noisy, timestep: kontext.predict(noisy, timestep.expand(1), text, latents),
        scheduler_for(kontext, "euler", SIZE),
        start,
        num_steps=3,
        generator=generator,
        on_step=lambda: None,
    )
    torch.testing.assert_close(ours, pipe._unpack_latents(theirs, 64, 64, 8), rtol=1e-4, atol=1e-4)


def test_a_sample_shows_its_reference(kontext: Flux, pairs: Path) -> None:
    prompt = SamplePrompt(**PROMPT)  # type: ignore[arg-type]
    before = [prompt.model_copy(update={"reference_image": str(pairs / "before" / f"{n}.jpg")}) for n in (0, 1)]
    plain, first, second = (sample_with_ours(kontext, p) for p in (prompt, *before))
    assert (plain != first).any()
    assert (first != second).any()


# -- data


def test_references_are_found_by_name(config: Config) -> None:
    files = {e.name: e.input_files[EDITED_IMAGE].path.name for e in ConceptPreview(config, 0).examples}
    assert files == {"0.png": "0.jpg", "1.png": "1.jpg", "2.png": "2.jpg", "below/3.png": "3.jpg"}


@pytest.mark.parametrize("colour", ["off", "always"])
def test_a_reference_is_changed_as_its_image(config: Config, pairs: Path, colour: str) -> None:
    """Its flip, its crop and its colours: here each reference shows what its image shows."""
    for file in pairs.glob("after/**/*.png"):
        shutil.copy(file, pairs / "before" / file.relative_to(pairs / "after"))
    for file in pairs.glob("before/**/*.jpg"):
        file.unlink()
    image = {"flip": "random", "crop_jitter": True, "rotate": "random", "rotate_max_degrees": 20.0}
    image |= {"conditioning_folder": str(pairs / "before"), "hue": colour, "hue_max": 0.3}
    changed = laid_over(config, {"concepts": [{**config.concepts[0].model_dump(), "image": image}]})
    preview = ConceptPreview(changed, 0)
    for number in range(NUM_IMAGES):
        pixels = preview.use(preview.uses(number)[0]).pixels
        assert pixels is not None
        assert pixels.size == (128, 64), "the reference is at the left"
        assert pixels.crop((0, 0, 64, 64)).tobytes() == pixels.crop((64, 0, 128, 64)).tobytes()


def test_the_key_contains_the_colours_of_a_reference_alone() -> None:
    source = SourceImage(Path(), "a.png", 48, 40, size_bytes=1, mtime_ns=2, captions=("a disc",))
    plain = plain_recipe(resize_crop_for(48, 40, (Size(32, 32),)))
    known = KnownKeys({}, {}, {0: "digest"}, "encoder")
    companion = Companion(Path("a-condlabel.png"), Size(48, 40), size_bytes=3, mtime_ns=4)

    def key(name: str, recipe: Recipe) -> str:
        example = replace(Example(source, 0, ()), input_files={name: companion})
        version = ImageVersion(0, 0, 0, recipe, SizeConditioning.of(Size(48, 40), recipe.geometry), 7)
        return reader_of(INPUTS[name], 8).key(example, version, known)

    changed = replace(plain, colour=Colour(hue_degrees=20.0))
    assert key(EDITED_IMAGE, plain) == key("masked_image", plain) == key("masked_image", changed)
    assert key(EDITED_IMAGE, changed) != key(EDITED_IMAGE, plain)


def test_missing_references_and_folders_are_named(config: Config, pairs: Path) -> None:
    (pairs / "before" / "1.jpg").unlink()
    folder = "concepts.0.image.conditioning_folder"
    message = errors_of(config)[folder]
    assert message.startswith("1 of 4 images has no reference image; the first is 1.png.")
    gone = {**config.concepts[0].model_dump(), "image": {"conditioning_folder": str(pairs / "gone")}}
    assert "does not exist" in errors_of(laid_over(config, {"concepts": [gone]}))[folder]
    next_to = {**config.concepts[0].model_dump(), "image": {}}
    assert errors_of(laid_over(config, {"concepts": [next_to]}))[folder].startswith("4 of 4 images have")
    for file in pairs.glob("after/**/*.png"):
        shutil.copy(file, file.with_name(f"{file.stem}-condlabel.png"))
    assert not check(laid_over(config, {"concepts": [next_to]})).errors


def test_an_unreadable_sample_is_named_and_none_is_stretched(config: Config, pairs: Path) -> None:
    draw_image(96, 64, 0).save(pairs / "before" / "0.jpg")
    prompts = [{**PROMPT, "reference_image": str(pairs / "before" / "0.jpg")}, {**PROMPT, "reference_image": "no.png"}]
    problems = check(laid_over(config, {"sampling": {"prompts": prompts}})).problems
    messages = [p.message for p in problems]
    assert not any("aspect ratio" in m or "stretched" in m for m in messages)
    assert any("reference image of sample 2 cannot be read" in m for m in messages)


# -- the variant


def test_a_kontext_folder_is_recognized_and_written(config: Config, tiny_flux_kontext: Path, tmp_path: Path) -> None:
    assert identify(tiny_flux_kontext).variant == "edit"
    ran = run(config)
    architecture = read_header(Path(ran.finished.model_path)).metadata["modelspec.architecture"]
    assert architecture == "flux-1-kontext-dev/lora"
    full = {
        "training": {"trains": "full", "learning_rate": 1e-3},
        "output": {"model_format": "diffusers", "destination": str(tmp_path / "tuned")},
    }
    assert identify(Path(run(laid_over(config, full)).finished.model_path)).variant == "edit"


@pytest.mark.parametrize("name", ["black-forest-labs/FLUX.1-Kontext-dev", "the folder"])
def test_kontext_without_references_is_a_warning(config: Config, tiny_flux_kontext: Path, name: str) -> None:
    base = str(tiny_flux_kontext) if name == "the folder" else name
    changed = laid_over(config, {"model": {"variant": "text_to_image", "base_model": base}})
    [problem] = [p for p in check(changed).problems if p.path == "model.variant"]
    assert (problem.severity, problem.remedy) == ("warning", "variant")
    assert "of the variant Editing" in problem.message


def test_dev_can_be_trained_with_references(config: Config, tiny_flux: Path) -> None:
    """The weights of both have the same shapes; a file of the transformer alone does not say which it is."""
    changed = laid_over(config, {"model": {"base_model": str(tiny_flux)}})
    assert not [p for p in check(changed).problems if p.path == "model.variant"]
    assert run(changed).finished.outcome == "finished"


def test_methods_that_sample_their_images_are_refused(config: Config) -> None:
    problems = problems_of(laid_over(config, {"training": {"method": {"name": "alignprop"}}}))
    assert any("its images have no reference image" in p.message for p in problems)


def test_the_estimate_has_the_tokens_of_the_reference(config: Config) -> None:
    big = laid_over(config, {"data": {"resolution_px": [1024]}})
    plain = laid_over(big, {"model": {"variant": "text_to_image"}})
    counts = {Size(1024, 1024): 4}
    with_reference, without = (
        dict(next(p.parts for p in estimate.phases if p.phase == "training"))["activations"]
        for c in (big, plain)
        if (estimate := memory_estimate(c, counts)) is not None
    )
    assert 1.8 < with_reference / without < 2.2


def test_the_estimate_has_the_size_of_the_pipeline(config: Config) -> None:
    """Where references have it, they are larger than the images: when they are encoded, and in a step."""
    small = laid_over(config, {"data": {"resolution_px": [512]}})
    large = laid_over(small, {"data": {"reference_size": "pipeline"}})
    of_image, of_pipeline = (
        {p.phase: dict(p.parts)["activations"] for p in estimate.phases if p.phase in ("encoding images", "training")}
        for c in (small, large)
        if (estimate := memory_estimate(c, {Size(512, 512): 4})) is not None
    )
    assert of_pipeline["encoding images"] > 1.5 * of_image["encoding images"]
    assert of_pipeline["training"] > 1.5 * of_image["training"]


@pytest.mark.parametrize(
    ("data", "concept"),
    [
        ({"resolution_px": [1024, 512]}, {}),
        ({"resolution_px": ["1024x256"]}, {}),
        ({"resolution_px": [1024], "fixed_width_px": 256, "fixed_height_px": 1024}, {}),
        ({"resolution_px": [1024]}, {"resolution_px": ["512x512"]}),
    ],
)
def test_the_estimate_knows_how_much_larger_the_references_are(
    config: Config, data: dict[str, Any], concept: dict[str, Any]
) -> None:
    """It knew whole numbers among the resolutions of all concepts alone."""
    image = {**config.concepts[0].image.model_dump(), **concept}
    changed = laid_over(config, {"data": data, "concepts": [{**config.concepts[0].model_dump(), "image": image}]})
    assert num_references(changed) == 1
    assert num_references(laid_over(changed, {"data": {"reference_size": "pipeline"}})) == 4


# -- runs


def test_its_losses_fall(config: Config, tmp_path: Path) -> None:
    """That of training and that of validation, which has references, too."""
    concept = config.concepts[0].model_dump()
    learning: dict[str, Any] = {
        "concepts": [{**concept, "repeats": 8}, {**concept, "kind": "validation"}],
        "training": {"epochs": 5, "batch_size": 4, "learning_rate": 0.003, "trains": "full"},
        "validation": {"every": {"n": 1, "unit": "epoch"}},
        "output": {"model_format": "diffusers", "destination": str(tmp_path / "tuned")},
    }
    ran = run(laid_over(config, learning))
    assert ran.finished.outcome == "finished"
    found = losses(ran)
    assert sum(found[-5:]) < 0.9 * sum(found[:5])
    validated = [e.loss for e in ran.of(ValidationFinished)]
    assert validated[-1] < validated[0]


@pytest.mark.full
def test_the_content_of_a_reference_is_learned(config: Config, pairs: Path, tmp_path: Path) -> None:
    """The image has the colour of its reference, which the caption does not name: after training, another one misleads.

    The same noise and timestep for both, close to pure noise, where the image itself shows little.
    """
    for number, colour in enumerate(("red", "lime", "blue", "white")):
        for name, place in (("after", f"{number}.png"), ("before", f"{number}.jpg")):
            folder = pairs / name / ("below" if number == 3 else ".")
            Image.new("RGB", (64, 64), colour).save(folder / place)
    tuned = {"model_format": "diffusers", "destination": str(tmp_path / "tuned")}
    training = {"epochs": 250, "batch_size": 4, "learning_rate": 0.005, "trains": "full"}
    concept = {**config.concepts[0].model_dump(), "repeats": 4}
    assert run(laid_over(config, {"concepts": [concept], "training": training, "output": tuned})).finished

    def gap(folder: Path) -> float:
        """How much larger the error is with the references in another order."""
        family: Flux = load_tiny(folder, FLUX.name, variant="edit")
        with torch.no_grad():
            images = torch.cat([read_sample_image(pairs / "after" / place, SIZE) for place in PLACES])
            latents_BCHW = family.encode_images(images)
            conditioning = family.encode_prompts(["turned"] * NUM_IMAGES)
            timesteps_B = torch.full((NUM_IMAGES,), 900.0)
            noise_BCHW = torch.randn(latents_BCHW.shape, generator=torch.Generator().manual_seed(1))
            noisy_BCHW = family.process.add_noise(latents_BCHW, noise_BCHW, timesteps_B)
            target_BCHW = family.process.target(latents_BCHW, noise_BCHW, timesteps_B)
            errors = [
                (family.predict(noisy_BCHW, timesteps_B, conditioning, {EDITED_IMAGE: reference}) - target_BCHW)
                for reference in (latents_BCHW, latents_BCHW.roll(1, dims=0))
            ]
        right, wrong = (error.square().mean().item() for error in errors)
        return wrong / right

    before, after = gap(Path(config.model.base_model)), gap(tmp_path / "tuned")
    assert after > 1.05  # 1.12 here
    assert before < 1.01


def test_it_is_cached_sampled_and_resumed(config: Config, pairs: Path) -> None:
    sample = {**PROMPT, "reference_image": str(pairs / "before" / "0.jpg")}
    sections: dict[str, Any] = {
        "data": {"latent_cache": True, "text_cache": True},
        "sampling": {"at_end": True, "prompts": [PROMPT, sample]},
        "backup": {"every": {"n": 1, "unit": "step"}, "keep": 0},
    }
    ran = run(laid_over(config, sections))
    assert len(ran.of(SampleReady)) == 2
    assert any(p.what == "reference images" for p in ran.of(CacheProgress))
    resumed = run(laid_over(config, sections), resume_from=Path(ran.of(BackupSaved)[0].path))
    assert_equal_tensors(resumed.weights, ran.weights)
    fresh = run(laid_over(config, {"data": {"latent_cache": False, "text_cache": True}}))
    assert losses(fresh) == losses(ran)
    other = run(laid_over(config, {**sections, "model": {"variant": "text_to_image"}}))
    assert losses(other) != losses(ran)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["off", "block", "whole", "auto"])
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_checkpointing_changes_nothing(config: Config, tmp_path: Path, mode: str, trains: str) -> None:
    """The text encoders are frozen; masks weigh the loss of the image alone."""
    output = {"destination": str(tmp_path / "tuned"), "model_format": "diffusers"} if trains == "full" else {}
    sections: dict[str, Any] = {"training": {"trains": trains}, "output": output}
    plain, changed = (
        run(laid_over(config, {**sections, "parts": {"transformer": {"checkpointing": m}}})) for m in ("off", mode)
    )
    assert losses(plain) == pytest.approx(losses(changed), rel=1e-5)


@pytest.mark.full
def test_masks_and_validation_after_caching(config: Config, pairs: Path) -> None:
    for file in sorted(pairs.glob("after/**/*.png")):
        mask = Image.new("L", (64, 64))
        mask.paste(255, (5, 5, 32, 32))
        mask.save(file.with_name(f"{file.stem}-masklabel.png"))
    concept = config.concepts[0].model_dump()
    sections: dict[str, Any] = {
        "concepts": [concept, {**concept, "kind": "validation"}],
        "masks": {"enabled": True, "prior_preservation_weight": 0.5},
        "data": {"latent_cache": True, "text_cache": True},
        "validation": {"every": {"n": 1, "unit": "step"}},
    }
    ran = run(laid_over(config, sections))
    assert len(ran.of(ValidationFinished)) >= 2
    again = run(laid_over(config, sections))
    assert [e.loss for e in again.of(ValidationFinished)] == [e.loss for e in ran.of(ValidationFinished)]
    assert not again.of(CacheProgress)


@pytest.mark.full
@pytest.mark.parametrize("method", ["alignprop", "online_dpo", "grpo", "dpo"])
def test_every_method_of_samples_and_pairs_is_refused(config: Config, method: str) -> None:
    assert "training.method" in {
        p.path for p in problems_of(laid_over(config, {"training": {"method": {"name": method}}}))
    }
