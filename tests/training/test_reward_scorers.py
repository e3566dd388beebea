"""The reward models: their scores, their gradients, and CLIP's input."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional
from transformers import CLIPModel
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

from modules.rewards.composite import CompositeReward, RewardModel, build_rewards
from modules.rewards.models import hpsv3, ocr, unified_reward
from modules.rewards.models.clip import clip_input
from modules.rewards.models.dino import dino_input, make_dino
from modules.rewards.models.pretrained import Fit
from modules.rewards.protocol import Reward, RewardContext
from modules.rewards.registry import REWARDS
from modules.rewards.settings import Scorer
from modules.rewards.user_code_file import hash_of
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders import blip
from tests.builders.blip import image_reward_weights, tiny_blip, write_image_reward
from tests.builders.clip import (
    IMAGE_PX,
    WIDTH,
    aesthetic_head,
    in_open_clip,
    tiny_clip,
    tiny_dino,
    write_aesthetic_head,
    write_clip_folder,
    write_dino_folder,
    write_open_clip,
)
from tests.builders.pipelines import clip_tokenizer
from tests.builders.qwen_vl_rewards import write_hpsv3, write_unified_reward
from tests.builders.reward_servers import Reply, serving
from trainer.commands import StopRequested

DIFFERENTIABLE = tuple(name for name, spec in REWARDS.items() if spec.is_differentiable)
NEED_FILES = tuple(name for name, spec in REWARDS.items() if spec.files)
pytestmark = pytest.mark.usefixtures("one_thread")

CONTEXT = RewardContext(CPU, offline=True)
OPENAI_MEAN, OPENAI_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
PROMPTS = ['a red disc, "Open door"', 'a cat on a mat, photographed from far above: "no"']


def photographs(*, size: tuple[int, int] = (40, 52), count: int = 2, seed: int = 3) -> torch.Tensor:
    """Smooth colour with some noise, away from 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 6, generator=generator)
    smooth = torch.nn.functional.interpolate(coarse, size, mode="bilinear")
    return (0.15 + 0.7 * smooth + 0.05 * torch.rand(count, 3, *size, generator=generator)).clamp(0.05, 0.95)


@pytest.fixture(autouse=True)
def reader(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text reader without its package: it reads more letters the brighter the top left of an image is."""
    read = lambda image: "OPEN DOOR"[: int(np.asarray(image)[:9, :9].mean() / 255 * 9) + 1]  # noqa: E731
    monkeypatch.setattr(ocr, "load_reader", lambda: read)
    monkeypatch.setattr(unified_reward, "_MAX_NEW_TOKENS", 2)
    monkeypatch.setattr(hpsv3, "_PIXELS", 4 * 28 * 28)


@pytest.fixture(scope="module")
def scorers(tmp_path_factory: pytest.TempPathFactory, one_thread: None) -> Iterator[dict[str, Scorer]]:
    """A reward model of every kind, with tiny weights on disk or with a server."""
    folder = tmp_path_factory.mktemp("rewards")
    clip = write_clip_folder(folder / "clip")
    code = folder / "mine.py"
    code.write_text("def redness(images, prompts):\n    return images[:, 0].mean(dim=(1, 2))\n")
    places: dict[str, dict[str, str]] = {
        "pickscore": {"file": str(clip)},
        "clip_score": {"file": str(clip)},
        "aesthetic": {
            "file": str(write_aesthetic_head(folder / "head.pth", aesthetic_head())),
            "clip_model": str(clip),
        },
        "hps": {"file": str(write_open_clip(folder / "HPS_v2.pt", tiny_clip(activation="gelu", seed=2)))},
        "image_reward": write_image_reward(folder / "image_reward"),
        "hpsv3": write_hpsv3(folder / "hpsv3"),
        "unified_reward": {"file": str(write_unified_reward(folder / "unified"))},
        "user_code": {"file": f"{code}:redness"},
    }
    with serving(Reply(sizes)) as server, serving(Reply(size_in_words)) as chat:
        places["reward_server"] = {"address": server.address}
        places["vision_model"] = {"address": chat.address, "model_name": "eyes"}
        yield {kind: Scorer(kind=kind, **places.get(kind, {})) for kind in REWARDS}


def sizes(message: dict[str, Any]) -> dict[str, Any]:
    """A reward server: the sizes of the files."""
    return {"scores": [len(png) / 1e5 for png in message["images"]]}


def size_in_words(message: dict[str, Any]) -> dict[str, Any]:
    """A vision language model that scores the size of a file."""
    url = message["messages"][1]["content"][1]["image_url"]["url"]
    return {"choices": [{"message": {"content": json.dumps({"reason": "its size", "score": len(url) / 1e5})}}]}


def made(scorer: Scorer) -> Reward:
    approved = {hash_of(Path(scorer.file.rpartition(":")[0]))} if scorer.kind == "user_code" else set()
    context = RewardContext(CPU, offline=True, approved_hashes=frozenset(approved))
    return build_rewards([scorer], context).reward_models[0].reward


@pytest.mark.parametrize("kind", REWARDS)
def test_each_reward_scores_each_image_alone(kind: str, scorers: dict[str, Scorer]) -> None:
    reward, images = made(scorers[kind]), photographs()
    together = reward(images, PROMPTS)
    assert together.shape == (2,)
    assert torch.isfinite(together).all()
    assert together[0] != together[1]
    alone = torch.cat([reward(images[i : i + 1], PROMPTS[i : i + 1]) for i in range(2)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)
    assert reward.is_differentiable is REWARDS[kind].is_differentiable


@pytest.mark.parametrize("kind", [k for k in DIFFERENTIABLE if not REWARDS[k].runs_code and k != "hpsv3"])
def test_gradients_are_right(kind: str, scorers: dict[str, Scorer]) -> None:
    """Against finite differences, in double precision; CLIP's reward models at the size they look at, in a few
    directions. A function in a process of its own computes in float32 (test_user_reward_process), and so do the norms
    of Qwen2-VL (test_vision_language_rewards).
    """
    reward = made(scorers[kind])
    is_clip = kind in NEED_FILES
    if kind == "image_reward":
        for module in (reward.vision, reward.text, reward.head):  # type: ignore[attr-defined]
            module.double()
    elif is_clip:
        image_encoder = reward.image_encoder  # type: ignore[attr-defined]
        image_encoder.model.double()
        if kind == "aesthetic":
            reward.head.double()  # type: ignore[attr-defined]
    images = photographs(size=(IMAGE_PX + 4, IMAGE_PX + 9) if is_clip else (4, 5)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda p: reward(p, PROMPTS), images, fast_mode=is_clip, atol=1e-6)


@pytest.mark.parametrize("kind", DIFFERENTIABLE)
def test_a_gradient_reaches_every_image(kind: str, scorers: dict[str, Scorer]) -> None:
    images = photographs().requires_grad_()
    made(scorers[kind])(images, PROMPTS).sum().backward()
    assert images.grad is not None
    assert (images.grad.abs().flatten(1).sum(dim=1) > 0).all()


@pytest.mark.parametrize("kind", sorted(NEED_FILES))
def test_no_reward_model_is_trainable_or_keeps_a_graph(kind: str, scorers: dict[str, Scorer]) -> None:
    assert not made(scorers[kind])(photographs(), PROMPTS).requires_grad


def test_the_simple_rewards_measure_what_their_names_say() -> None:
    black, white = torch.zeros(1, 3, 8, 8), torch.ones(1, 3, 8, 8)
    halves = torch.cat([black, white], dim=-1)
    board = (torch.arange(8)[:, None] + torch.arange(8)) % 2 * torch.ones(1, 3, 8, 8)

    def rated(kind: str, image: torch.Tensor, **options: Any) -> float:
        return float(made(Scorer(kind=kind, **options))(image, ["x"]))

    assert (rated("brightness", black), rated("brightness", white)) == (0.0, 1.0)
    assert rated("contrast", halves) == pytest.approx(0.5)
    assert rated("contrast", white) < 1e-5
    assert rated("symmetry", halves) == -1.0
    assert rated("symmetry", torch.cat([halves, halves.flip(-1)], dim=-1)) == 0.0
    assert rated("sharpness", white) == 0.0
    assert rated("sharpness", board) == pytest.approx(16.0)  # four neighbours of the other colour around each pixel
    assert rated("sharpness", board) > rated("sharpness", halves) > 0
    assert rated("colour_target", white, colour="#ffffff") == 0.0
    assert rated("colour_target", black, colour="#FFFFFF") == -1.0
    assert rated("colour_target", black, colour="ff0000") == pytest.approx(-1 / 3)


@pytest.mark.parametrize("kind", sorted(REWARDS.keys() - set(DIFFERENTIABLE)))
def test_a_reward_without_gradient_scores_images_with_one(kind: str, scorers: dict[str, Scorer]) -> None:
    images = photographs()
    scores = made(scorers[kind])(images.clone().requires_grad_(), PROMPTS)
    assert not scores.requires_grad
    assert torch.equal(scores, made(scorers[kind])(images, PROMPTS))


def test_the_jpeg_rewards_are_the_size_of_the_file_in_kb(tmp_path: Path) -> None:
    images = photographs(size=(64, 48))
    for quality in (95, 50):
        expected = []
        for image in images:
            levels = (image.permute(1, 2, 0) * 255).round().byte().numpy()
            Image.fromarray(levels).save(tmp_path / "it.jpg", quality=quality)
            expected.append((tmp_path / "it.jpg").stat().st_size / 1000)
        large = made(Scorer(kind="incompressibility", jpeg_quality=quality))(images, PROMPTS)
        assert large.tolist() == pytest.approx(expected)
        assert torch.equal(made(Scorer(kind="compressibility", jpeg_quality=quality))(images, PROMPTS), -large)


def test_the_text_score_needs_a_quoted_text() -> None:
    images, prompts = photographs(count=3), ["a sign", 'a sign: "open"', "the dog's 'open' sign"]
    scores = made(Scorer(kind="ocr"))(images, prompts)
    assert scores.isnan().tolist() == [True, False, True]


def test_a_stop_takes_effect_between_images_of_a_slow_reward() -> None:
    checks: list[int] = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 2:
            raise StopRequested

    [model] = build_rewards([Scorer(kind="compressibility")], RewardContext(CPU, check=check)).reward_models
    with pytest.raises(StopRequested):
        model.reward(photographs(count=3), ["a", "b", "c"])
    assert len(checks) == 2


def test_a_flat_image_has_a_finite_gradient_of_contrast() -> None:
    image = torch.full((1, 3, 8, 8), 0.5, requires_grad=True)
    made(Scorer(kind="contrast"))(image, ["x"]).sum().backward()
    assert image.grad is not None
    assert torch.isfinite(image.grad).all()


@pytest.mark.parametrize("size", [(224, 224), (300, 300), (256, 400), (401, 260), (100, 100), (97, 131)])
def test_clip_preprocessing_is_that_of_transformers(size: tuple[int, int]) -> None:
    """Up to its rounding to 256 levels, after each of the two directions of a resize: within 1.1 levels."""
    levels = (photographs(size=size, count=1)[0] * 255).round()
    image = Image.fromarray(levels.permute(1, 2, 0).numpy().astype(np.uint8))
    theirs = CLIPImageProcessorPil()(image, return_tensors="pt")["pixel_values"]
    ours = clip_input(levels[None] / 255, side_px=224)
    assert ours.shape == theirs.shape == (1, 3, 224, 224)
    level = 1 / 255 / 0.26130258  # after normalisation, where a level is largest
    assert float((ours - theirs).abs().max()) < 1.1 * level
    assert float((ours - theirs).abs().mean()) < 0.35 * level


@pytest.mark.parametrize("size", [(256, 256), (300, 401), (97, 131)])
def test_dino_preprocessing_is_that_of_transformers(size: tuple[int, int]) -> None:
    levels = (photographs(size=size, count=1)[0] * 255).round()
    image = Image.fromarray(levels.permute(1, 2, 0).numpy().astype(np.uint8))
    processor = BitImageProcessorPil(
        size={"shortest_edge": 256},
        crop_size={"height": 224, "width": 224},
        resample=Image.Resampling.BICUBIC,
        image_mean=(0.485, 0.456, 0.406),
        image_std=(0.229, 0.224, 0.225),
    )
    theirs = processor(image, return_tensors="pt")["pixel_values"]
    ours = dino_input(levels[None] / 255)
    assert ours.shape == theirs.shape == (1, 3, 224, 224)
    assert float((ours - theirs).abs().max()) < 1.1 / 255 / 0.224


def test_dino_embeddings_are_the_class_tokens_of_transformers(tmp_path: Path) -> None:
    images = photographs(size=(256, 256), count=2)
    encoder = make_dino(write_dino_folder(tmp_path / "dino"), RewardContext(CPU))
    theirs = tiny_dino()(pixel_values=dino_input(images)).pooler_output
    assert torch.equal(encoder.images(images), functional.normalize(theirs, dim=-1))


@pytest.mark.parametrize("size", [(224, 224), (300, 300), (256, 400), (401, 260), (224, 160), (97, 131), (3, 400)])
def test_hps_preprocessing_is_that_of_its_authors(size: tuple[int, int]) -> None:
    """The longer side to 224 with Pillow's bicubic filter, in the middle of black; the odd pixel right and below."""
    levels = (photographs(size=size, count=1)[0] * 255).round()
    image = Image.fromarray(levels.permute(1, 2, 0).numpy().astype(np.uint8))
    scale = 224 / max(size)
    height, width = (round(length * scale) for length in size)
    canvas = Image.new("RGB", (224, 224))
    canvas.paste(image.resize((width, height), Image.Resampling.BICUBIC), ((224 - width) // 2, (224 - height) // 2))
    theirs = (np.asarray(canvas, dtype=np.float32) / 255 - OPENAI_MEAN) / OPENAI_STD
    ours = clip_input(levels[None] / 255, side_px=224, fit="pad")
    assert ours.shape == (1, 3, 224, 224)
    level = 1 / 255 / 0.26130258  # after normalisation, where a level is largest
    error = np.abs(ours[0].permute(1, 2, 0).numpy() - theirs)
    assert float(error.max()) < 1.1 * level
    assert float(error.mean()) < 0.35 * level


def cosine(model: CLIPModel, images: torch.Tensor, *, pad: str, fit: Fit) -> torch.Tensor:
    """The output of transformers' own model for images and the prompts."""
    tokens = clip_tokenizer(pad)(PROMPTS, padding="max_length", truncation=True, return_tensors="pt")
    with torch.no_grad():
        result = model(input_ids=tokens["input_ids"], pixel_values=clip_input(images, side_px=IMAGE_PX, fit=fit))
    return (result.image_embeds * result.text_embeds).sum(dim=-1)


@pytest.mark.parametrize(
    ("kind", "model", "factor", "pad", "fit"),
    [
        ("clip_score", tiny_clip, lambda model: 1.0, "<|endoftext|>", "crop"),
        ("pickscore", tiny_clip, lambda model: float(model.logit_scale.detach().exp()), "<|endoftext|>", "crop"),
        ("hps", lambda: tiny_clip(activation="gelu", seed=2), lambda model: 1.0, "!", "pad"),
    ],
)
def test_clip_rewards_are_those_of_transformers_own_model(
    kind: str,
    model: Callable[[], CLIPModel],
    factor: Callable[[Any], float],
    pad: str,
    fit: Fit,
    scorers: dict[str, Scorer],
) -> None:
    """HPS comes out of OpenCLIP's layout, with its sizes read off its shapes."""
    theirs = model()
    images = photographs()
    torch.testing.assert_close(
        made(scorers[kind])(images, PROMPTS),
        factor(theirs) * cosine(theirs, images, pad=pad, fit=fit),
        rtol=1e-5,
        atol=1e-6,
    )


def test_the_aesthetic_score_uses_the_normalised_embedding(scorers: dict[str, Scorer]) -> None:
    images = photographs()
    with torch.no_grad():
        pixels = clip_input(images, side_px=IMAGE_PX)
        direction = tiny_clip().get_image_features(pixel_values=pixels).pooler_output
        expected = aesthetic_head()(direction / direction.norm(dim=-1, keepdim=True)).squeeze(1)
    torch.testing.assert_close(made(scorers["aesthetic"])(images, PROMPTS), expected)


def test_image_reward_is_that_of_transformers_own_layers(scorers: dict[str, Scorer]) -> None:
    """With the authors' preprocessing, their 35 tokens, the first token's state, and their scale."""
    vision, text, head = tiny_blip()
    images, prompts = photographs(), ["A red disc", "cats on a mat, far"]
    ids = torch.zeros(2, 35, dtype=torch.long)
    for row, words in enumerate((["a", "red", "disc"], ["cat", "##s", "on", "a", "mat", ",", "far"])):
        tokens = [blip.WORDS.index(word) for word in ("[CLS]", *words, "[SEP]")]
        ids[row, : len(tokens)] = torch.tensor(tokens)
    with torch.no_grad():
        seen = vision(pixel_values=clip_input(images, side_px=blip.IMAGE_PX)).last_hidden_state
        read = text(input_ids=ids, attention_mask=(ids > 0).long(), encoder_hidden_states=seen, is_decoder=False)
        expected = (head(read.last_hidden_state[:, 0]).squeeze(1) - 0.16717362830052426) / 1.0333394966054072
    torch.testing.assert_close(made(scorers["image_reward"])(images, prompts), expected)
    other = made(scorers["image_reward"])(images, ["a red mat", "cats on a mat, far"])
    assert other[0] != expected[0]
    torch.testing.assert_close(other[1], expected[1])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("blip.visual_encoder.pos_embed", "blip.visual_encoder.pos_embed is missing"),
        ("blip.visual_encoder.blocks.1.attn.qkv.bias", 'Missing key(s) in state_dict: "encoder.layers.1.self_attn'),
        ("mlp.layers.6.bias", "mlp.layers.6.bias is missing"),
    ],
)
def test_a_damaged_image_reward_is_refused(tmp_path: Path, name: str, words: str) -> None:
    weights, files = image_reward_weights(), write_image_reward(tmp_path)
    del weights[name]
    torch.save(weights, tmp_path / "damaged.pt")
    assert words in refused(Scorer(kind="image_reward", **{**files, "file": str(tmp_path / "damaged.pt")}))
    assert "is not the vocabulary of BERT" in refused(
        Scorer(kind="image_reward", **{**files, "vocabulary": files["file"]})
    )


def test_checkpointing_clip_leaves_its_gradients_as_they_are(scorers: dict[str, Scorer]) -> None:
    reward, plain = made(scorers["clip_score"]), tiny_clip().requires_grad_(False)
    images = photographs().requires_grad_()
    (ours,) = torch.autograd.grad(reward(images, PROMPTS).sum(), images)
    captions = reward.image_encoder.captions(PROMPTS)  # type: ignore[attr-defined]
    pixels = clip_input(images, side_px=IMAGE_PX)
    direction = torch.nn.functional.normalize(plain.get_image_features(pixel_values=pixels).pooler_output, dim=-1)
    (theirs,) = torch.autograd.grad((direction * captions).sum(), images)
    assert torch.equal(ours, theirs)


def test_rewards_stay_in_float32_inside_autocast(scorers: dict[str, Scorer]) -> None:
    composite = CompositeReward((RewardModel("it", made(scorers["clip_score"]), 1.0),))
    plain = composite(photographs(), PROMPTS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(composite(photographs(), PROMPTS).total_B, plain.total_B)


def refused(scorer: Scorer) -> str:
    with pytest.raises(DarkroomError) as caught:
        build_rewards([scorer], CONTEXT)
    return str(caught.value)


def test_damaged_files_are_refused_with_a_message(tmp_path: Path) -> None:
    clip = write_clip_folder(tmp_path / "clip")
    other = write_aesthetic_head(tmp_path / "wide.pth", aesthetic_head(width=WIDTH + 1))
    said = refused(Scorer(kind="aesthetic", file=str(other), clip_model=str(clip)))
    assert "wide.pth is not an aesthetic predictor for this CLIP model: layers.0.weight should be (1024, 16)" in said
    assert "HPS_v2_compressed.pt" in refused(Scorer(kind="hps", file=str(other)))

    weights = {k: v for k, v in tiny_clip().state_dict().items() if "post_layernorm" not in k}
    tiny_clip().save_pretrained(tmp_path / "lacking", state_dict=weights)
    assert "2 weights are missing from the CLIP model" in refused(
        Scorer(kind="clip_score", file=str(tmp_path / "lacking"))
    )

    (clip / "model.safetensors").write_bytes(b"no weights")
    assert "cannot be read" in refused(Scorer(kind="pickscore", file=str(clip)))


def test_an_open_clip_file_with_a_missing_weight_is_refused(tmp_path: Path) -> None:
    whole = in_open_clip(tiny_clip())
    del whole["visual.ln_post.bias"]
    torch.save({"state_dict": whole}, tmp_path / "hps.pt")
    said = refused(Scorer(kind="hps", file=str(tmp_path / "hps.pt")))
    assert "1 weights of the CLIP model are missing from hps.pt; the first is vision_model.post_layernorm.bias" in said


def test_a_file_that_contains_more_than_weights_is_not_run(tmp_path: Path) -> None:
    class Planted:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "was run",))

    torch.save({"state_dict": Planted()}, tmp_path / "hps.pt")
    assert "contains more than weights" in refused(Scorer(kind="hps", file=str(tmp_path / "hps.pt")))
    assert not (tmp_path / "was run").exists()
