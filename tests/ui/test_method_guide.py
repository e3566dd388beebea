"""The guide of a training method on the Rewards page."""

from __future__ import annotations

from typing import Any

import pytest

from modules.config.schema import Config
from modules.objectives.metrics import METRICS
from modules.objectives.registry import METHODS
from tests.ui.conftest import Window
from tests.ui.driving import walk
from ui.features.rewards.model import (
    ADAPTER_COPY,
    NO_COPY,
    SAMPLING_ADAPTER_COPY,
    SAMPLING_WEIGHTS_COPY,
    TWO_COPIES,
    WEIGHTS_COPY,
    guide_of,
)
from ui.features.rewards.page import COSTS, NEEDS, WATCH
from ui.widgets.card import Card
from ui.widgets.panel import Text


def test_the_list_of_reward_models_is_shown_to_methods_that_need_them(window: Window) -> None:
    page: Any = window.open_page("rewards")
    assert not page.list.card.winfo_ismapped()
    window.app.form.choose_variant("training.method", "grpo")
    window.settle()
    assert page.list.card.winfo_ismapped()
    window.app.form.choose_variant("training.method", "denoise")
    window.settle()
    assert not page.list.card.winfo_ismapped()
    assert page.show_field("reward.models")
    window.settle()
    assert page.list.card.winfo_ismapped()  # a link shows it


def guide_texts(window: Window, page: Any) -> list[str]:
    card = next(w for w in walk(page.scroll.body) if isinstance(w, Card))
    return [str(w.cget("text")) for w in walk(card) if isinstance(w, Text) and w.winfo_ismapped()]


def test_the_page_leads_through_the_method(window: Window) -> None:
    page: Any = window.open_page("rewards")
    assert guide_texts(window, page) == ["Denoising", METHODS["denoise"].help]
    window.app.form.choose_variant("training.method", "grpo")
    window.app.form.edit("training.batch_size", 2)
    window.settle()
    texts = guide_texts(window, page)
    assert {"GRPO", NEEDS, COSTS, WATCH} <= set(texts)
    assert "Each step: 16 images sampled in 16 denoising steps each." in texts
    window.app.form.edit("training.method.group_size", 4)
    window.settle()
    assert "Each step: 8 images sampled in 16 denoising steps each." in guide_texts(window, page)
    window.app.root.geometry("1060x640+0+0")
    window.settle()
    for text in (w for w in walk(page.scroll.body) if isinstance(w, Text) and w.winfo_ismapped()):
        assert text.winfo_rootx() + text.winfo_width() <= page.frame.winfo_rootx() + page.frame.winfo_width()


@pytest.mark.parametrize("name", METHODS)
def test_every_guide_has_costs_and_metrics_that_exist(name: str) -> None:
    spec = METHODS[name]
    assert set(spec.guide.watch) <= {*METRICS, "held_out"}
    config = Config.model_validate({"training": {"method": {"name": name}}})
    guide = guide_of(config)
    assert bool(guide.needs) == bool(guide.costs) == bool(guide.watch) == (name != "denoise")


def test_the_costs_follow_the_settings() -> None:
    training: dict[str, Any] = {"batch_size": 2, "accumulation_steps": 3, "trains": "full"}
    method = {"name": "ddpo", "samples_per_prompt": 4, "steps": 10, "guidance": 1.0, "kl_weight": 0.0}
    config = Config.model_validate({"training": {**training, "method": method}})
    assert guide_of(config).costs == (
        "Each step: 24 images sampled in 10 denoising steps each.",
        "240 passes through the denoiser to sample, 216 to train.",
    )
    method.update(guidance=5.0, kl_weight=0.1, inner_epochs=2)
    config = Config.model_validate({"training": {**training, "method": method}})
    assert guide_of(config).costs == (
        "Every 2 steps: 24 images sampled in 10 denoising steps each.",
        "480 passes through the denoiser to sample, 432 to train, 432 by the reference model (guidance doubles them).",
        WEIGHTS_COPY,
    )


def test_the_costs_of_own_images() -> None:
    training: dict[str, Any] = {"batch_size": 2, "accumulation_steps": 3}
    method = {"name": "alignprop", "steps": 10, "guidance": 5.0, "gradient_truncation": "direct", "clean_images": "own"}

    def costs(**changes: Any) -> tuple[str, ...]:
        return guide_of(Config.model_validate({"training": {**training, "method": {**method, **changes}}})).costs

    assert costs() == (
        "Each step: 6 images of your concepts, noised and predicted once each.",
        "12 passes through the denoiser to train (guidance doubles them).",
    )
    one_step = costs(steps=1, gradient_truncation="fixed", backprop_steps=1)
    assert one_step[0] == "Each step: 6 images sampled in 1 denoising step each."


def test_the_costs_of_online_dpo() -> None:
    training: dict[str, Any] = {"batch_size": 2, "accumulation_steps": 3}
    method: dict[str, Any] = {"name": "online_dpo", "candidates": 4, "steps": 10, "guidance": 1.0}

    def costs(**changes: Any) -> tuple[str, ...]:
        settings = {"training": {**training, "method": {**method, **changes}}}
        return guide_of(Config.model_validate(settings)).costs

    assert costs() == (
        "Every 4 steps: 24 images sampled in 10 denoising steps each.",
        "240 passes through the denoiser to sample. Each step then trains on up to 6 pairs, which the model and the "
        "reference model predict.",
        NO_COPY,
    )
    assert costs(reference="refreshed")[-1] == ADAPTER_COPY
    started = Config.model_validate({"training": {"method": method}, "adapter": {"start_from": "lora.safetensors"}})
    assert guide_of(started).costs[-1] == ADAPTER_COPY
    # 10 steps, 4 of which have three candidates more
    assert costs(pairs="steps", timestep_share=0.45)[1].startswith("132 passes through the denoiser to sample, 24 to")


def test_the_costs_of_diffusion_nft() -> None:
    training: dict[str, Any] = {"batch_size": 2, "accumulation_steps": 3}
    method: dict[str, Any] = {"name": "nft", "group_size": 4, "steps": 10, "timesteps_per_image": 2}

    def costs(trains: str = "adapter", **changes: Any) -> tuple[str, ...]:
        settings = {"training": {**training, "trains": trains, "method": {**method, **changes}}}
        return guide_of(Config.model_validate(settings)).costs

    assert costs() == (
        "Each step: 24 images sampled in 10 denoising steps each.",
        "240 passes through the denoiser to sample. Each step then makes 48 to train, and as many by each of the "
        "sampling and the original model.",
        SAMPLING_ADAPTER_COPY,
    )
    assert costs(kl_weight=0.0)[1].endswith("as many by the sampling model.")
    assert costs(name="dgpo")[1].endswith(
        "as many by each of the sampling and the original model, and by the model itself before."
    )
    assert costs("full")[-1] == TWO_COPIES
    assert costs("full", kl_weight=0.0)[-1] == SAMPLING_WEIGHTS_COPY
