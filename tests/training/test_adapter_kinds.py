"""Adapters other than LoRA in whole runs: they learn, resume bit for bit, and their files are what they should be."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from modules.adapters.protocol import target_layers
from modules.adapters.registry import ADAPTERS
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.data.dataset import Dataset
from modules.families.kinds.identify import identify
from modules.families.parts.part_classes import UNET_LAYERS
from modules.settings.edit import set_path
from modules.settings.layer_filter import layer_filter
from tests.builders.configs import USUAL_LAYERS, laid_over, small_config
from tests.builders.pipelines import load_tiny
from tests.builders.runs import Ran, assert_equal_tensors, run
from tests.builders.standalone import put_adapter_on
from trainer.events import BackupSaved, StepFinished
from trainer.export.adapter import AdapterExporter
from trainer.export.exporter import SaveMoment
from trainer.preflight import check
from trainer.run_folder.shards import read_whole

KINDS: dict[str, dict[str, Any]] = {
    "lokr": {"name": "lokr", "rank": 1, "alpha": 2.0, "use_tucker": True},
    "loha": {"name": "loha", "rank": 2, "alpha": 2.0, "use_tucker": True, "rank_dropout": 0.2},
    "oft": {"name": "oft", "block_size": 4, "rescale": True, "constraint": 0.02},
    "oft v2": {"name": "oft", "block_size": 4, "rotates": "inputs", "scaled": True, "dtype": "bfloat16"},
}
EMPTY, NOW = Dataset((), (), 1), datetime(2026, 1, 2)


def with_adapter(config: Config, **settings: Any) -> Config:
    changed, problems = set_path(config, "adapter", settings)
    assert not problems
    return changed


def backup_of(ran: Ran, step: int) -> Path:
    return next(Path(b.path) for b in ran.of(BackupSaved) if b.step == step)


@pytest.fixture(
    scope="module",
    params=["lokr", "oft v2", *(pytest.param(name, marks=pytest.mark.full) for name in ("loha", "oft"))],
)
def trained(
    tiny_sdxl: Path, images: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> tuple[Config, Ran]:
    """A run with everything on that draws at random, and a backup after each step."""
    config = small_config(
        tmp_path_factory.mktemp("kinds"), model=tiny_sdxl, images=images,
        training={"epochs": 1, "learning_rate": 0.02, "ema": {"mode": "train_device"}},
        backup={"every": {"n": 1, "unit": "step"}, "keep": 0},
        parts={"unet": {"checkpointing": "block", "offload_activations": True, "offload_fraction": 0.5}},
        general={"temp_device": "cpu:1"},
        output={"dtype": "float32"},
    )  # fmt: skip
    config = with_adapter(config, layers="all", dropout=0.2, module_dropout=0.1, **KINDS[request.param])
    return config, run(config)


@pytest.mark.daily(1)
def test_it_learns_and_resumes_bit_equal(trained: tuple[Config, Ran]) -> None:
    config, straight = trained
    steps = straight.of(StepFinished)
    assert {"unet", "text_encoder", "text_encoder_2"} <= {n.partition(".")[0] for n in straight.weights}
    assert all(s.gradient_norm for s in steps)
    resumed = run(config, resume_from=backup_of(straight, steps[-1].step // 2))
    assert_equal_tensors(resumed.weights, straight.weights)
    assert_equal_tensors(*(load_file(Path(r.finished.model_path)) for r in (resumed, straight)))


@pytest.mark.full
def test_its_file_is_recognised_and_says_what_it_is(trained: tuple[Config, Ran]) -> None:
    path = Path(trained[1].finished.model_path)
    kind, tensors = identify(path), load_file(path)
    label = ADAPTERS[trained[0].adapter.name].label
    assert (kind.kind, kind.model, kind.facts["adapter"], kind.facts["form"]) == ("lora", "sdxl", label, "kohya")
    layers = {name.split(".", 1)[0] for name in tensors}
    assert kind.facts["layers"] == str(len(layers))
    for layer in layers:
        has_alpha = f"{layer}.oft_R.weight" not in tensors
        assert not has_alpha or tensors[f"{layer}.alpha"].shape == ()
        assert layer.startswith(("lora_unet_", "lora_te1_text_model_", "lora_te2_text_model_"))


def test_saved_loaded_saved_is_bit_equal(trained: tuple[Config, Ran], tmp_path: Path) -> None:
    config, ran = trained
    path = Path(ran.finished.model_path)
    family = load_tiny(Path(config.model.base_model))
    adapters = put_adapter_on(family, path)
    values = {name: p.detach() for a in adapters for name, p in a.parameters().items()}
    again = tmp_path / "again.safetensors"
    exporter = AdapterExporter(adapters, family.lora_naming, config, EMPTY)
    exporter.save(again, values, SaveMoment(NOW, step=1, epoch=1))
    assert_equal_tensors(load_file(again), load_file(path))


def test_a_file_of_another_kind_is_refused_before_the_run(trained: tuple[Config, Ran], tmp_path: Path) -> None:
    config, ran = trained
    file = ran.finished.model_path
    elsewhere = laid_over(config, {"output": {"destination": str(tmp_path / "onwards.safetensors")}})
    as_lora = with_adapter(elsewhere, name="lora", start_from=file)
    [error] = check(as_lora).errors
    assert (error.path, "is not a LoRA, the adapter type of this run" in error.message) == ("adapter.start_from", True)


@pytest.mark.full
def test_the_factors_of_the_file_decide(trained: tuple[Config, Ran], tmp_path: Path) -> None:
    config, ran = trained
    before = load_file(ran.finished.model_path)
    changes = {
        "output": {"destination": str(tmp_path / "onwards.safetensors")},
        "backup": {"every": {"unit": "never"}},
    }
    name = config.adapter.name
    other = {"start_from": ran.finished.model_path, **({"block_size": 2} if name == "oft" else {"rank": 3})}
    after = load_file(run(laid_over(config, {"adapter": other, **changes})).finished.model_path)
    assert {name: tensor.shape for name, tensor in before.items()} == {n: t.shape for n, t in after.items()}


def test_the_diffusers_form_is_refused(trained: tuple[Config, Ran]) -> None:
    config = laid_over(trained[0], {"output": {"format": "diffusers"}})
    assert [p.path for p in problems_of(config) if p.severity == "error"] == ["output.format"]


@pytest.mark.daily(3)
@pytest.mark.parametrize(
    "adapter",
    [{"name": "lora"}, {"name": "lora", "decompose": True}, {"name": "loha"}, {"name": "lokr"}, {"name": "oft"}],
    ids=["lora", "dora", "loha", "lokr", "oft"],
)
def test_by_default_every_attention_and_feed_forward_layer_learns(
    any_model: Path, images: Path, tmp_path: Path, adapter: dict[str, Any]
) -> None:
    """Most small runs of the tests train two projections of each block."""
    size = {"block_size": 4} if adapter["name"] == "oft" else {"rank": 2}
    config = with_adapter(
        small_config(
            tmp_path, model=any_model, images=images, training={"epochs": 1, "batch_size": 3},
            parts={"unet": {"checkpointing": "block"}}, backup={"every": {"n": 1, "unit": "step"}, "keep": 0},
        ),
        **size, **adapter, **USUAL_LAYERS,
    )  # fmt: skip
    ran = run(config)
    before, after = (read_whole(Path(b.path), "weights") for b in ran.of(BackupSaved)[:: len(ran.of(BackupSaved)) - 1])
    family = load_tiny(any_model)
    wanted = {
        f"{part.spec.name}.{layer}"
        for part in family.parts.values() if part.spec.trainable
        for layer in target_layers(
            part.module, part.spec.role, layers=layer_filter(config.adapter.layers, UNET_LAYERS), reaches=part.reaches
        )
    }  # fmt: skip
    assert all(any(kind in layer for layer in wanted) for kind in ("attn1", "attn2", "proj_in", "ff.net", "mlp.fc1"))
    moved = [name for name in after if not after[name].equal(before[name])]
    assert not [layer for layer in wanted if not any(name.startswith(f"{layer}.") for name in moved)]
    assert not [name for name in after if not any(name.startswith(f"{layer}.") for layer in wanted)]
