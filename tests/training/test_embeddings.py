"""Runs that train embeddings: alone and with a LoRA or a fine-tune; what moves, and what is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from modules.config.codec import load_file as load_config
from modules.config.schema import Config
from tests.builders.configs import general_in, laid_over, small_config
from tests.builders.images import draw_folder
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, assert_equal_tensors, run, stop_at
from tests.builders.standalone import generate_samples
from trainer.events import SampleReady, StepFinished, WarningRaised
from trainer.preflight import check

CAPTIONS = ["a <zog>", "a disc", "a red <ZOG>, small"]
ALONE: dict[str, Any] = {
    "training": {"trains": "embedding", "learning_rate": 1e-2, "epochs": 2},
    "embeddings": {"words": [{"placeholder": "<zog>", "initial_text": "cat", "token_count": 2}]},
}


def config_of(folder: Path, model: Path, **changes: Any) -> Config:
    images = folder / "images"
    if not images.exists():
        draw_folder(images, sizes=[(64, 64)] * 6, captions=CAPTIONS)
    sections = {name: {**settings, **changes.pop(name, {})} for name, settings in ALONE.items()}
    output = {"output": {"destination": str(folder / "out" / "zog.safetensors")}}
    return small_config(folder, model=model, images=images, **output, **sections, **changes)


def ran(config: Config, **options: Any) -> Ran:
    assert [p for p in check(config).problems if p.severity == "error"] == []
    result = run(config, **options)
    assert result.finished.outcome in ("finished", "stopped")
    return result


def losses(result: Ran) -> list[float | None]:
    return [s.loss for s in result.of(StepFinished)]


def test_an_embedding_alone(any_model: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, any_model)
    family = load_tiny(any_model)
    encoders = list(family.spec.text.embedding_tensors)
    result = ran(config)
    assert result.weights.keys() == {f"embedding:<zog>.{n}" for n in encoders}
    stored = load_file(tmp_path / "out" / "zog.safetensors")
    assert stored.keys() == set(family.spec.text.embedding_tensors.values())
    for name, tensor in family.spec.text.embedding_tensors.items():
        start = family.towers[name].encoder.get_input_embeddings().weight[family.token_ids(name, "cat")]
        rows = result.weights[f"embedding:<zog>.{name}"]
        assert rows.shape == (2, start.shape[1])
        assert (rows[:1] - start).abs().max() > 1e-3  # moved
        assert torch.equal(stored[tensor], rows.half())
    # Only the two captions with the word are encoded in each step; the other one and the empty one are cached.
    assert len(list((tmp_path / "cache" / "text").rglob("*.safetensors"))) == 2


@pytest.mark.full
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_stopped_and_resumed_bit_for_bit(tiny_sdxl: Path, tmp_path: Path, dtype: str) -> None:
    more = {
        "training": {"ema": {"mode": "train_device", "decay": 0.9}, "schedule": {"name": "cosine", "warmup_steps": 2}},
        "embeddings": {"preserve_norm": True, "dtype": dtype},
    }
    config = config_of(tmp_path / "a", tiny_sdxl, **more)
    whole = ran(config)

    again = config_of(tmp_path / "b", tiny_sdxl, **more)
    stopped = run(again, on_event=stop_at(2))
    resumed = ran(again, resume_from=Path(stopped.finished.backup_path))
    assert_equal_tensors(whole.weights, resumed.weights)
    assert losses(stopped) + losses(resumed) == losses(whole)
    files = [load_file(folder / "out" / "zog.safetensors") for folder in (tmp_path / "a", tmp_path / "b")]
    assert_equal_tensors(*files)
    norms = {n: w.norm(dim=-1).tolist() for n, w in whole.weights.items()}
    family = load_tiny(tiny_sdxl)
    for name in family.spec.text.embedding_tensors:
        typical = family.towers[name].encoder.get_input_embeddings().weight.norm(dim=-1).median().item()
        assert norms[f"embedding:<zog>.{name}"] == pytest.approx([typical] * 2)


def test_other_words_of_a_run(tiny_sd: Path, tmp_path: Path) -> None:
    """One from a file, only used; one with its own rate that stops; one in no batch with the others."""
    first = ran(config_of(tmp_path / "first", tiny_sd))
    file = tmp_path / "first" / "out" / "zog.safetensors"
    words = [
        {"placeholder": "disc", "file": str(file), "train": False},
        {"placeholder": "red", "initial_text": "", "learning_rate": 1e-3, "stop_after": {"n": 2, "unit": "step"}},
        {"placeholder": "<zog>", "start": "random", "token_count": 3, "uuid": "abc"},
    ]
    folder = tmp_path / "second"
    config = config_of(folder, tiny_sd, embeddings={"words": words})

    def watch(event: object, send: Any) -> None:
        if isinstance(event, StepFinished):
            assert event.learning_rates.get("embedding red", 1e-3) == pytest.approx(1e-3)
            assert "embedding disc" not in event.learning_rates
            assert "embedding <zog>" in event.training_parts, "not by its UUID, which nobody knows"

    second = ran(config, on_event=watch)
    weights = second.weights
    assert weights.keys() == {"embedding:red.text_encoder", "embedding:abc.text_encoder"}
    assert [w.message for w in second.of(WarningRaised) if "has stopped" in w.message] == [
        "Training of Embedding red has stopped as set, at step 2."
    ]
    assert weights["embedding:abc.text_encoder"].shape[0] == 3
    # The first that is trained is the result, the others are beside it.
    assert torch.equal(
        load_file(folder / "out" / "zog.safetensors")["emp_params"], weights["embedding:red.text_encoder"].half()
    )
    beside = load_file(folder / "out" / "zog_embeddings" / "zog.safetensors")["emp_params"]
    assert torch.equal(beside, weights["embedding:abc.text_encoder"].half())
    assert first.weights["embedding:<zog>.text_encoder"].shape[0] == 2
    # "a disc" is cached, because its embedding is only used, but not as in the first run.
    keys = [{p.stem for p in (tmp_path / n / "cache" / "text").rglob("*.safetensors")} for n in ("first", "second")]
    assert [len(k) for k in keys] == [2, 2]
    assert not keys[0] & keys[1]


@pytest.mark.daily(1)
@pytest.mark.parametrize("trains", ["adapter", "full"])
def test_together_with_a_lora_or_a_fine_tune(tiny_sd: Path, tmp_path: Path, trains: str) -> None:
    more = {"unet": {"train": True}, "text_encoder": {"train": trains == "full"}}
    config = config_of(tmp_path, tiny_sd, parts=more, training={"trains": trains, "learning_rate": 1e-3})
    config = laid_over(config, {"embeddings": {"learning_rate": 1e-2}})
    result = ran(config)
    rows = result.weights["embedding:<zog>.text_encoder"]
    assert len(result.weights) > 10
    assert torch.equal(load_file(tmp_path / "out" / "zog_embeddings" / "zog.safetensors")["emp_params"], rows.half())
    stored = load_file(tmp_path / "out" / "zog.safetensors")
    assert not [n for n in stored if "new_rows" in n]
    if trains == "adapter":
        assert torch.equal(stored["bundle_emb.<zog>.emp_params"], rows.half())
        alone = laid_over(config, {"adapter": {"bundle_embeddings": False}, "training": {"epochs": 1}})
        ran(alone)
        second = load_file(tmp_path / "out" / "zog-2.safetensors")  # the result of the first run is kept
        assert not [n for n in second if n.startswith("bundle_emb")]
    else:
        assert any(n.endswith("token_embedding.weight") for n in stored)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"embeddings": {"words": []}}, "embeddings.words"),
        ({"embeddings": {"words": [{"placeholder": "<zog>", "train": False}]}}, "embeddings.words"),
        ({"embeddings": {"words": [{"placeholder": "<zog>", "token_count": 76}]}}, "embeddings.words.0.token_count"),
        ({"embeddings": {"words": [{"placeholder": "a disc"}]}}, "embeddings.words.0.placeholder"),
        ({"embeddings": {"words": [{"placeholder": "a(disc"}]}}, "embeddings.words.0.placeholder"),
        ({"embeddings": {"words": [{"placeholder": "<zig>"}]}}, "embeddings.words.0.placeholder"),
        (
            {"embeddings": {"words": [{"placeholder": "<zog>"}, {"placeholder": "<ZOG>"}]}},
            "embeddings.words.1.placeholder",
        ),
        ({"embeddings": {"words": [{"placeholder": "<zog>", "file": "gone.pt"}]}}, "embeddings.words.0.file"),
        (
            {"embeddings": {"words": [{"placeholder": "<zog>", "learning_rate": 0.0}]}},
            "embeddings.words.0.learning_rate",
        ),
        ({"parts": {"text_encoder": {"train_embedding": False}}}, "parts.text_encoder.train_embedding"),
        ({"training": {"method": {"name": "alignprop"}}}, "training.method"),
        ({"masks": {"enabled": True, "prior_preservation_weight": 0.5, "unmasked_weight": 0.1}}, "training.trains"),
        (
            {"embeddings": {"preserve_norm": True}, "training": {"optimizer": {"name": "schedule_free_adamw"}}},
            "embeddings.preserve_norm",
        ),
        (
            {
                "embeddings": {"preserve_norm": True, "dtype": "bfloat16"},
                "training": {"low_precision_updates": "stochastic"},
            },
            "embeddings.preserve_norm",
        ),
    ],
)
def test_what_cannot_work_is_named_before_the_run(
    tiny_sd: Path, tmp_path: Path, changes: dict[str, Any], path: str
) -> None:
    found = [p for p in check(config_of(tmp_path, tiny_sd, **changes)).problems if p.severity == "error"]
    assert path in {p.path for p in found}, found
    assert all(p.advice for p in found)


def test_a_placeholder_that_is_a_word_is_a_warning(tiny_sd: Path, tmp_path: Path) -> None:
    config = config_of(tmp_path, tiny_sd, embeddings={"words": [{"placeholder": "disc"}]})
    [problem] = [p for p in check(config).problems if p.path.startswith("embeddings")]
    assert problem.severity == "warning"
    assert "already knows" in problem.message


# OneTrainer's presets "#sd 1.5 embedding" (version 6) and "#sdxl 1.0 embedding" (version 1).
ONETRAINER: dict[str, dict[str, Any]] = {
    "tiny_sd": {
        "model_type": "STABLE_DIFFUSION_15",
        "output_model_format": "SAFETENSORS",
        "resolution": "512",
        "vae": {"weight_dtype": "FLOAT_32"},
        "__version": 6,
    },
    "tiny_sdxl": {
        "model_type": "STABLE_DIFFUSION_XL_10_BASE",
        "output_model_format": "SAFETENSORS",
        "resolution": "1024",
        "train_text_encoder_epochs": 30,
        "train_unet_epochs": 100000,
        "vae_weight_dtype": "FLOAT_32",
        "__version": 1,
    },
}


@pytest.mark.parametrize("name", list(ONETRAINER))
def test_onetrainers_embedding_presets_train(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    model: Path = request.getfixturevalue(name)
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 2, captions=["an <embedding>"])
    file = tmp_path / "embedding.json"
    own = {"backup_after": 10, "latent_caching": False, "learning_rate": 3e-4, "learning_rate_warmup_steps": 20}
    common = {"sample_after": 1, "training_method": "EMBEDDING", "weight_dtype": "FLOAT_16"}
    result = {
        "base_model_name": str(model),
        "output_model_destination": str(tmp_path / "out" / "embedding.safetensors"),
    }
    file.write_text(json.dumps({**own, **common, **result, **ONETRAINER[name]}))
    loaded = load_config(file)
    assert [p for p in loaded.problems if p.severity == "error"] == []
    assert loaded.config.training.trains == "embedding"
    small = laid_over(
        loaded.config,
        {
            "general": general_in(tmp_path),
            "concepts": [{"path": str(images)}],
            "data": {"resolution_px": [64], "bucket_step_px": 16, "loader_threads": 1},
            "training": {"epochs": 1, "precision": "float32"},
            "parts": {p: {"dtype": "float32"} for p in ("unet", "text_encoder", "text_encoder_2")},
            "sampling": {"every": {"unit": "never"}},
        },
    )
    trained = ran(small)
    [*rows] = trained.weights.values()
    assert [len(r) for r in rows] == [1] * len(rows)
    assert (tmp_path / "out" / "embedding.safetensors").is_file()


def test_an_output_embedding(tiny_sdxl: Path, tmp_path: Path) -> None:
    word = {"placeholder": "<zog>", "initial_text": "cat", "token_count": 2, "is_output": True}
    config = config_of(tmp_path, tiny_sdxl, embeddings={"words": [word]})
    result = ran(config)
    encoders = ("text_encoder", "text_encoder_2")
    assert result.weights.keys() == {f"embedding:<zog>.{n}.output" for n in encoders}
    file = tmp_path / "out" / "zog.safetensors"
    stored = load_file(file)
    assert stored.keys() == {"clip_l", "clip_g", "clip_l_out", "clip_g_out"}
    family = load_tiny(tiny_sdxl)
    vocabulary = family.towers["text_encoder"].encoder.get_input_embeddings().weight
    assert torch.equal(stored["clip_l"][0], vocabulary[family.token_ids("text_encoder", "cat")[0]].half())
    trained = result.weights["embedding:<zog>.text_encoder.output"]
    assert torch.equal(stored["clip_l_out"], trained.half())
    # A run that starts from its file continues there.
    again = config_of(tmp_path, tiny_sdxl, embeddings={"words": [{**word, "file": str(file), "learning_rate": 1e-9}]})
    prompt = {"prompt": "a <zog>", "width_px": 64, "height_px": 64, "steps": 2}
    sampled = laid_over(again, {"sampling": {"at_end": True, "prompts": [prompt]}})
    continued = run(sampled)
    moved = continued.weights["embedding:<zog>.text_encoder.output"] - trained.half()
    assert moved.abs().max() < 1e-6
    # So do samples without a run.
    (image,) = generate_samples(sampled, None)
    with Image.open(continued.of(SampleReady)[-1].path) as of_run:
        assert np.abs(np.asarray(image, dtype=int) - np.asarray(of_run.convert("RGB"), dtype=int)).max() <= 1
    (without,) = generate_samples(laid_over(sampled, {"embeddings": {"words": []}}), None)
    assert np.abs(np.asarray(image, dtype=int) - np.asarray(without, dtype=int)).max() > 1


def test_updates_in_the_backward_pass_and_captions_without_the_word(tiny_sd: Path, tmp_path: Path) -> None:
    """A step whose captions are all cached has no gradient at all."""
    own = {"batch_size": 1, "clip_grad_norm": None, "optimizer": {"name": "adamw", "fused_back_pass": True}}
    result = ran(config_of(tmp_path, tiny_sd, training=own))
    norms = [s.gradient_norm for s in result.of(StepFinished)]
    assert norms.count(0.0) == 4  # the images without the word, in two epochs
    assert len(norms) == 12
    assert all(loss is not None for loss in losses(result))


def test_a_lora_of_all_parts_of_sdxl_with_an_embedding(tiny_sdxl: Path, tmp_path: Path) -> None:
    """The text encoders are trained too, so no caption is cached."""
    result = ran(config_of(tmp_path, tiny_sdxl, training={"trains": "adapter", "learning_rate": 1e-3}))
    assert {n for n in result.weights if n.startswith("embedding:")} == {
        "embedding:<zog>.text_encoder",
        "embedding:<zog>.text_encoder_2",
    }
    stored = load_file(tmp_path / "out" / "zog.safetensors")
    assert {n for n in stored if n.startswith("bundle_emb.")} == {"bundle_emb.<zog>.clip_l", "bundle_emb.<zog>.clip_g"}
    assert not (tmp_path / "cache" / "text").exists() or not list((tmp_path / "cache" / "text").rglob("*.safetensors"))
    # The adapters used to switch the gradients of the embedding off, without a word.
    assert any("embedding <zog>" in step.gradient_norms for step in result.of(StepFinished))
