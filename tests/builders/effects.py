"""A run in which every setting has something to work on, and what it leaves behind: whether a change does something."""

from __future__ import annotations

import functools
import glob
import hashlib
import json
import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from modules.config.schema import Config
from modules.config.usage import learns_from
from modules.formats.safetensors_io import read_safetensors
from modules.settings.edit import condition_path, get_path, is_relevant, set_path
from modules.settings.field import FieldRecord, records_of
from tests.builders.configs import laid_over, small_config
from tests.builders.images import draw_folder, draw_mask
from tests.builders.runs import Ran, run
from trainer.events import RewardMeasured, RunFinished, RunStarted, SampleReady, ValidationFinished
from trainer.run.setup import Clocks

TWO_LINES = [
    f"disc {n}, round, red, (flat:1.3), {{one|two}} of {n}\nanother, (plain:1.3), {{small|tiny}}, round, bright"
    for n in range(3)
]
TAG_DROPOUT = {"concepts.0.text.tag_dropout": True, "concepts.0.text.tag_dropout_probability": 0.7}
SAMPLE = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 3, "guidance": 2.0}


# What a choice asks for beside it.
SHORT_CHAIN = {"name": "alignprop", "steps": 3, "backprop_steps": 2, "guidance": 1.0, "target_reward": 0.1}
SHORT_DDPO = {"name": "ddpo", "steps": 3, "samples_per_prompt": 2, "guidance": 1.0, "tracker_min_count": 2}
SHORT_GRPO = {"name": "grpo", "steps": 4, "group_size": 2, "guidance": 1.0, "kl_weight": 0.0, "window_size": 1}
SHORT_ONLINE = {
    "name": "online_dpo",
    "steps": 3,
    "candidates": 3,
    "guidance": 1.0,
    "updates_per_rollout": 2,
    "refresh_every": 1,
    "timestep_share": 1.0,
}
SHORT_NFT = {"name": "nft", "steps": 3, "group_size": 2, "timesteps_per_image": 1, "updates_per_rollout": 2}
SHORT_DGPO = {**SHORT_NFT, "name": "dgpo"}
SHORT = {short["name"]: short for short in (SHORT_CHAIN, SHORT_DDPO, SHORT_GRPO, SHORT_ONLINE, SHORT_NFT, SHORT_DGPO)}
BESIDE: dict[str, dict[str, Any]] = {
    "adapter.layers": {"adapter.custom_layers": "attn2"},
    "training.layer_filter": {"training.layer_filter_names": "attn2"},
    "quantization.layers": {"parts.unet.dtype": "nfloat4", "quantization.custom_layers": "attn2"},
    "model.family.zero_terminal_snr": {"model.family.prediction_type": "v_prediction"},
    **{
        f"concepts.0.image.{name}": {f"concepts.0.image.{strength}": amount}
        for name, strength, amount in (
            ("rotate", "rotate_max_degrees", 20.0),
            ("brightness", "brightness_max", 0.5),
            ("contrast", "contrast_max", 0.5),
            ("saturation", "saturation_max", 0.5),
            ("hue", "hue_max", 0.5),
        )
    },
    "concepts.0.image.mask_source": {"masks.enabled": True},
    "data.bucket_aspect_ratios": {"data.bucket_step_px": 8},
    "data.partial_batches": {"training.batch_size": 2, "concepts.0.repeats": 3.0},
    **{f: {"training.method": SHORT_CHAIN} for f in ("training.method.gradient_truncation", "training.method.loss")},
    "training.method.clean_images": {
        "training.method": {**SHORT_CHAIN, "gradient_truncation": "direct", "min_timestep": 1}
    },
    **{
        f"training.loss.mix.{loss}.{f}": {f"training.loss.mix.{loss}": {"strength": 1.0, "delta": 0.3}}
        for loss in ("huber", "smooth_l1")
        for f in ("schedule", "form")
    },
    "training.method.advantage": {"training.method": SHORT_DDPO, "training.accumulation_steps": 3},
    "training.method.reward_sum": {
        "training.method": SHORT_GRPO,
        "reward.models": [{"kind": "brightness"}, {"kind": "contrast"}],
    },
    **{
        f"training.method.{name}": {"training.method": SHORT_GRPO}
        for name in ("first_noise", "timesteps", "flow_steps")
    },
    "training.method.trust_region": {"training.method": {**SHORT_GRPO, "inner_epochs": 2}},
    "reward.models.0.kind": {"training.method": SHORT_CHAIN},
    "concepts.0.text.tag_dropout_mode": TAG_DROPOUT,
    "concepts.0.text.special_tags_mode": {**TAG_DROPOUT, "concepts.0.text.special_tags": "red, small"},
}
# The same for a field of one method, where others have a field of this name.
BESIDE_OF_METHOD: dict[tuple[str, str], dict[str, Any]] = {
    **{
        ("online_dpo", f"training.method.{name}"): {"training.method": SHORT_ONLINE}
        for name in ("chosen_by", "pairs", "sampler", "loss", "loss_noise", "reference")
    },
    **{
        ("nft", f"training.method.{name}"): {"training.method": SHORT_NFT}
        for name in ("objective", "sampler", "old_policy")
    },
    **{
        ("dgpo", f"training.method.{name}"): {"training.method": SHORT_DGPO}
        for name in ("reference", "sampler", "old_policy")
    },
    **{
        (short["name"], "training.method.reward_sum"): {
            "training.method": short,
            "reward.models": [{"kind": "brightness"}, {"kind": "contrast"}],
        }
        for short in (SHORT_ONLINE, SHORT_NFT, SHORT_DGPO)
    },
}


def left_behind(ran: Ran) -> str:
    """A hash of what a run leaves: the result's tensors, what it tells of the run, the samples, the weights."""
    digest = hashlib.sha256()
    result, metadata = read_safetensors(Path(ran.finished.model_path))
    embedded = json.loads(metadata.get("darkroom_config", "{}"))
    told = [metadata.get(f"ss_{name}") for name in ("dataset_dirs", "tag_frequency")]
    told += [metadata.get(f"modelspec.{name}") for name in ("trigger_phrase", "thumbnail")]
    digest.update(json.dumps([sorted(embedded), bool(embedded.get("concepts")), told]).encode())
    for name, tensor in sorted(result.items()):
        digest.update(f"{name} {tensor.dtype}".encode() + tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    for sample in ran.of(SampleReady):
        digest.update(sample.path.split(".")[-1].encode() + Path(sample.path).read_bytes())
    for name, tensor in sorted(load_file(Path(ran.finished.backup_path) / "weights.safetensors").items()):
        digest.update(name.encode() + tensor.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


CLOCKS = Clocks(now=lambda: datetime(2026, 1, 1))


def run_of_everything(folder: Path, model: Path) -> Config:
    """A run in which every choice has something to work on."""
    draw_everything(folder)
    return config_of_everything(folder, model)


def draw_everything(folder: Path) -> None:
    """Draw the images of the run."""
    images = draw_folder(folder / "named discs", sizes=[(64, 64)] * 2 + [(96, 64)], captions=TWO_LINES)
    draw_mask(images / "000-masklabel.png")
    draw_folder(folder / "held out", sizes=[(64, 64)])


def config_of_everything(folder: Path, model: Path) -> Config:
    """The config of the run."""
    images, held_out = folder / "named discs", folder / "held out"
    config = small_config(
        folder,
        model=model,
        images=images,
        concepts=[{"path": str(images)}, {"path": str(held_out), "kind": "validation"}],
        parts={"unet": {"train": True}, "text_encoder": {"train": True}, "vae": {"train": True}},
        training={"epochs": 2, "batch_size": 1, "ema": {"mode": "train_device", "decay": 0.5}, "learning_rate": 0.02},
        adapter={"custom_layers": "attn2"},
        sampling={"at_end": True, "prompts": [SAMPLE]},
        validation={"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 1},
        reward={"models": [{"kind": "brightness"}], "measure_every": {"unit": "never"}},
    )
    return laid_over(config, {"model": {"offline": True}})


def offered(
    config: Config, records: tuple[FieldRecord, ...] = records_of(Config)
) -> Iterator[tuple[Config, FieldRecord]]:
    """Yield every field that a form offers, with the config it is seen in: each variant is chosen in turn."""
    for record in records:
        yield config, record
        for name, variant in record.variants.items():
            # By its name alone: what is set for the one that is chosen stays.
            yield from offered(with_value(config, record.path, name), records_of(variant, record.path))
        if record.item and record.kind in ("list", "map"):
            inside = get_path(config, record.path)
            for key in inside if record.kind == "map" else range(min(1, len(inside))):
                yield from offered(config, records_of(record.item, f"{record.path}.{key}"))


def with_value(config: Config, path: str, value: Any) -> Config:
    """The config with one value changed, inside the first entry of a list too."""
    holder, is_inside, name = path.partition(".0.")
    if is_inside:
        items = [i.model_dump() for i in get_path(config, holder)]
        *folders, name = name.split(".")
        node = items[0]
        for folder in folders:
            node = node[folder]
        node[name] = value
        path, value = holder, items
    changed, problems = set_path(config, path, value)
    assert not problems, problems
    return changed


def in_force(config: Config, record: FieldRecord) -> Config:
    """The config in which a field counts: what it waits for is set, and what that waits for."""
    beside = BESIDE_OF_METHOD.get((config.training.method.name, record.path), BESIDE.get(record.path, {}))
    for path, value in beside.items():
        config = with_value(config, path, value)
    condition = record.setting.applies_when
    if condition is None or is_relevant(config, record):
        return config
    path = condition_path(record, condition)
    if (waited_for := next((r for r in records_of(Config) if r.path == path), None)) is not None:
        config = in_force(config, waited_for)
    if condition.is_set:
        return with_value(config, path, 1) if isinstance(get_path(config, path), int | float) else config
    return with_value(config, path, condition.is_any_of[-1])


def is_of_pairs(config: Config, record: FieldRecord) -> bool:
    """Whether a choice is one of a method that learns from pairs, which are not here: see test_dpo."""
    return record.path.startswith("training.method") and learns_from(config) == "pairs"


@functools.cache
def left_by(config_json: str) -> str:
    """What the run of a config leaves; many choices are compared with one and the same run."""
    return left_behind(run(Config.model_validate_json(config_json), clocks=CLOCKS))


def left_by_run(config: Config) -> str:
    return left_by(config.model_dump_json())


@functools.cache
def told_by(config_json: str) -> str:
    """What the run of a config leaves and tells, its files and measurements too."""
    ran = run(Config.model_validate_json(config_json), clocks=CLOCKS)
    assert isinstance(ran.ending, RunFinished), ran.ending
    [started] = ran.of(RunStarted)
    folder = Path(started.run_dir)
    model = ran.finished.model_path
    told: list[Any] = [ran.finished.outcome, ran.finished.step, model]
    if model and ran.finished.backup_path:
        told.append(left_behind(ran))
    told += sorted(str(p.relative_to(folder)) for p in folder.rglob("*"))
    told += [(e.step, e.loss, e.weighted_loss) for e in ran.of(ValidationFinished)]
    told += [(e.step, e.num_images, e.followed, e.diversity) for e in ran.of(RewardMeasured)]
    if model:
        remove_result(Path(model))
    return json.dumps(told)


def remove_result(model: Path) -> None:
    """Remove a result with its embeddings: the next run would number its own, and every run would seem to differ."""
    for path in model.parent.glob(f"{glob.escape(model.stem)}*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def told_by_run(config: Config) -> str:
    return told_by(config.model_dump_json())
