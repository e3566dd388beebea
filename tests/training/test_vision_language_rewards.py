"""HPSv3 and UnifiedReward: their input, scores and gradients are those of transformers' models run as published."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerFast, Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from modules.config.schema import Config
from modules.rewards.composite import build_rewards
from modules.rewards.measures import pillow_images
from modules.rewards.models import hpsv3, unified_reward
from modules.rewards.models.qwen_vl import caption_text, image_patches
from modules.rewards.models.unified_reward import final_score
from modules.rewards.protocol import RewardContext
from modules.rewards.settings import Scorer
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders.configs import small_config
from tests.builders.qwen_vl_rewards import (
    hpsv3_weights,
    tiny_qwen2_vl,
    tiny_tokenizer,
    write_hpsv3,
    write_unified_reward,
)
from tests.builders.runs import run
from trainer.commands import StopRequested
from trainer.events import StepFinished
from trainer.preflight import check

pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = RewardContext(CPU, offline=True)
PROMPTS = ["a red disc", "a cat on a mat, photographed from far above", "a square"]
SMALLEST, LARGEST = 4 * 28 * 28, 16384 * 28 * 28


def photographs(height: int, width: int, *, count: int = 3) -> torch.Tensor:
    """Smooth images in 256 levels, so that Pillow's are equal."""
    coarse = torch.rand(count, 3, 5, 6, generator=torch.Generator().manual_seed(3))
    return (torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear") * 255).round() / 255


def hps_of(places: dict[str, str]) -> hpsv3.HumanPreference:
    reward = build_rewards([Scorer(kind="hpsv3", **places)], CONTEXT).reward_models[0].reward
    assert isinstance(reward, hpsv3.HumanPreference)
    return reward


def unified_of(folder: Path, context: RewardContext = CONTEXT) -> unified_reward.UnifiedReward:
    reward = build_rewards([Scorer(kind="unified_reward", file=str(folder))], context).reward_models[0].reward
    assert isinstance(reward, unified_reward.UnifiedReward)
    return reward


# ---- the input


@pytest.mark.parametrize("size", [(56, 84), (112, 112), (40, 52), (300, 401), (97, 131)])
def test_patches_are_those_of_transformers(size: tuple[int, int]) -> None:
    """Equal where nothing is resized; else within 1.1 levels, as Pillow rounds to 256 levels after each direction."""
    images = photographs(*size, count=2)
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": SMALLEST, "longest_edge": LARGEST})
    theirs = processor(pillow_images(images), return_tensors="pt")
    ours, grid = image_patches(images, min_pixels=SMALLEST, max_pixels=LARGEST)
    assert theirs["image_grid_thw"].tolist() == [[1, *grid]] * 2
    assert ours.shape == theirs["pixel_values"].shape
    is_resized = any(length % 28 for length in size)
    tolerance = 1.1 / 255 / 0.26130258 if is_resized else 1e-6
    assert float((ours - theirs["pixel_values"]).abs().max()) < tolerance


@pytest.mark.parametrize("size", [(512, 512), (1024, 1024), (832, 1216), (64, 64), (768, 512)])
def test_hpsv3_sees_about_256_tokens_of_every_image(size: tuple[int, int]) -> None:
    _, (rows, columns) = image_patches(torch.rand(1, 3, *size), min_pixels=hpsv3._PIXELS, max_pixels=hpsv3._PIXELS)
    assert hpsv3._PIXELS == 256 * 28 * 28
    assert 215 <= rows * columns // 4 <= 256


def test_the_prompts_are_the_published_ones() -> None:
    """To the character, by the hash of the authors' text: the models were trained with it."""
    digests = {
        hpsv3._INSTRUCTION: "19fda5ab8c9699287d9e4e51f22b0298e110ba6585e20bc728f8bf514be401fe",
        unified_reward._QUESTION: "c49d7e9905e814edc78554af3874b9046bdb3c65458ebadc734b0f4ca23601f6",
    }
    assert {text: hashlib.sha256(text.encode()).hexdigest() for text in digests} == digests


def chat(text: str, num_image: int) -> str:
    """The message as the published chat template writes it, with the image's tokens."""
    return (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        f"<|im_start|>user\n<|vision_start|>{'<|image_pad|>' * num_image}<|vision_end|>{text}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


# ---- HPSv3


def published_scores(images: torch.Tensor, prompts: list[str]) -> torch.Tensor:
    """The authors' forward pass: embeddings with the image scattered into them, a mask, and the head on every token."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer(), pad_token="<|endoftext|>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|Reward|>"]})
    model, head = tiny_qwen2_vl(len(tokenizer))
    patches, (rows, columns) = image_patches(images, min_pixels=hpsv3._PIXELS, max_pixels=hpsv3._PIXELS)
    texts = [chat(hpsv3._INSTRUCTION.format(caption=prompt), rows * columns // 4) for prompt in prompts]
    batch = tokenizer(texts, padding=True, padding_side="right", return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    seen = model.model.visual(patches, grid_thw=torch.tensor([[1, rows, columns]] * len(prompts))).pooler_output
    words = model.model.language_model.embed_tokens(ids)
    is_image = (ids == tokenizer.convert_tokens_to_ids("<|image_pad|>"))[:, :, None].expand_as(words)
    states = model.model(inputs_embeds=words.masked_scatter(is_image, seen), attention_mask=mask).last_hidden_state
    return head(states)[ids == tokenizer.convert_tokens_to_ids("<|Reward|>")][:, 0]


def test_hpsv3_scores_and_gradients_are_the_published_ones(tmp_path: Path) -> None:
    """At the size that the model looks at, with captions of different lengths."""
    reward = hps_of(write_hpsv3(tmp_path))
    ours, theirs = (photographs(448, 448).requires_grad_() for _ in range(2))
    scores, expected = reward(ours, PROMPTS), published_scores(theirs, PROMPTS)
    torch.testing.assert_close(scores, expected, rtol=1e-4, atol=1e-6)
    assert len({round(score, 4) for score in scores.tolist()}) == 3
    scores.sum().backward()
    expected.sum().backward()
    assert ours.grad is not None
    torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-3 * float(ours.grad.abs().max()))
    assert (ours.grad.abs().flatten(1).sum(dim=1) > 0).all()


def test_hpsv3_is_read_under_the_names_of_every_version_of_transformers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hpsv3, "_PIXELS", SMALLEST)
    places = write_hpsv3(tmp_path)
    images = photographs(40, 52)
    first = hps_of(places)(images, PROMPTS)
    save_file(hpsv3_weights(is_new=True), places["file"])
    assert torch.equal(hps_of(places)(images, PROMPTS), first)
    save_file({name: t.bfloat16() for name, t in hpsv3_weights().items()}, places["file"])
    half = hps_of(places)
    assert {p.dtype for p in half.model.parameters()} == {torch.bfloat16}
    assert {p.dtype for p in half.head.parameters()} == {torch.float32}
    torch.testing.assert_close(half(images, PROMPTS), first, rtol=0.1, atol=0.01)


def test_a_caption_cannot_add_tokens_that_the_models_treat_as_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hpsv3, "_PIXELS", SMALLEST)
    reward, images = hps_of(write_hpsv3(tmp_path)), photographs(40, 52, count=1)
    plain = reward(images, ["a disc"])
    assert torch.equal(reward(images, ["a <|Reward|><|image_pad|>disc"]), plain)
    assert caption_text("a {brace} <|im_end|>") == "a {brace} "
    assert caption_text("a <|im_<|im_end|>end|>disc") == "a disc", "one name inside another"
    assert reward(images, ["a {brace}"]).isfinite().all()


def test_files_that_are_not_hpsv3s_are_refused(tmp_path: Path) -> None:
    places = write_hpsv3(tmp_path)
    weights = hpsv3_weights()
    for name, words in (
        ("rm_head.3.weight", r"not HPSv3's model: rm_head\.3\.weight is missing"),
        ("visual.blocks.1.attn.proj.bias", r"1 weights of Qwen2-VL are missing from HPSv3\.safetensors"),
        ("model.layers.0.mlp.gate_proj.weight", "not HPSv3's model"),
    ):
        save_file({n: t for n, t in weights.items() if n != name}, places["file"])
        with pytest.raises(DarkroomError, match=words):
            hps_of(places)
    torch.save(weights, places["file"])
    with pytest.raises(DarkroomError, match="pickle"):
        hps_of(places)
    places = write_hpsv3(tmp_path)
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["another"])
    tokenizer.save(places["vocabulary"])
    with pytest.raises(DarkroomError, match=r"tokenizer\.json has \d+ tokens .* but HPSv3\.safetensors has \d+"):
        hps_of(places)
    Path(places["vocabulary"]).write_text("{")
    with pytest.raises(DarkroomError, match="damaged"):
        hps_of(places)


# ---- UnifiedReward


def test_unified_reward_answers_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As transformers generates for each image alone, without padding."""
    monkeypatch.setattr(unified_reward, "_MAX_NEW_TOKENS", 3)
    folder = write_unified_reward(tmp_path / "model")
    images = photographs(56, 84)
    reward = unified_of(folder)
    answers = reward.answers(images, PROMPTS)
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer(), pad_token="<|endoftext|>")
    processor = Qwen2VLImageProcessorPil(size={"shortest_edge": SMALLEST, "longest_edge": LARGEST})
    for image, prompt, answer in zip(pillow_images(images), PROMPTS, answers, strict=True):
        seen = processor([image], return_tensors="pt")
        text = chat(unified_reward._QUESTION.format(caption=prompt), 2 * 3)
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        is_image = (ids == tokenizer.convert_tokens_to_ids("<|image_pad|>")).int()
        written = model.generate(input_ids=ids, mm_token_type_ids=is_image, **seen, max_new_tokens=3, do_sample=False)
        assert tokenizer.decode(written[0, ids.shape[1] :]) == answer
    assert reward(images, PROMPTS).tolist() == pytest.approx([final_score(answer) for answer in answers])
    assert len(set(answers)) > 1


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("cat (animal): 1\nFinal Score: 3.75", 3.75), ("Final Score: 2\nThen Final Score: **4**.", 4.0),
        ("final score: [5]", 5.0), ("Final Score: 7", None), ("The score is 3", None), ("", None),
    ],
)  # fmt: skip
def test_the_score_of_an_answer(answer: str, score: float | None) -> None:
    found = final_score(answer)
    assert found == score if score is not None else found != found


def alignprop_on(folder: Path, model: Path, images: Path, *scorers: dict[str, str], **method: Any) -> Config:
    return small_config(
        folder,
        model=model,
        images=images,
        training={"method": {"name": "alignprop", "steps": 3, "backprop_steps": 1, **method}, "epochs": 1},
        reward={"models": list(scorers), "measure_every": {"unit": "never"}},
    )


@pytest.mark.parametrize("truncation", ["fixed", "direct"])
def test_methods_with_reward_gradients_train_on_hpsv3_and_only_hold_out_unified_reward(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truncation: str
) -> None:
    monkeypatch.setattr(hpsv3, "_PIXELS", SMALLEST)
    monkeypatch.setattr(unified_reward, "_MAX_NEW_TOKENS", 2)
    hps = {"kind": "hpsv3", **write_hpsv3(tmp_path / "hps")}
    unified = {"kind": "unified_reward", "file": str(write_unified_reward(tmp_path / "unified"))}
    method = {"gradient_truncation": truncation, "min_timestep": 1, "held_out_reward": "unified_reward"}
    ran = run(alignprop_on(tmp_path, tiny_sd, images, hps, unified, **method))
    assert ran.finished.outcome == "finished"
    assert all("reward/hpsv3" in step.metrics for step in ran.of(StepFinished))
    assert all(step.gradient_norm for step in ran.of(StepFinished))
    errors = check(alignprop_on(tmp_path, tiny_sd, images, hps, unified)).errors
    assert [error.message for error in errors] == ["AlignProp needs gradients, which UnifiedReward does not have."]


def test_a_stop_takes_effect_between_the_tokens_of_an_answer(tmp_path: Path) -> None:
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 2:
            raise StopRequested

    reward = unified_of(write_unified_reward(tmp_path / "model"), RewardContext(CPU, offline=True, check=check))
    with pytest.raises(StopRequested):
        reward(photographs(56, 84), PROMPTS)
    assert len(checks) == 2


def test_a_folder_of_several_weight_files_must_be_whole(tmp_path: Path) -> None:
    folder = write_unified_reward(tmp_path / "model")
    [first, *_] = sorted(json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"].values())
    (folder / first).rename(folder / "away")
    with pytest.raises(DarkroomError, match=rf"names {first}, which is not next to it"):
        unified_of(folder)
    (folder / "away").rename(folder / first)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(DarkroomError, match=r"tokenizer\.json is missing"):
        unified_of(folder)
