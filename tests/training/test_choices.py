"""Every choice a form offers does something: it changes what a run leaves behind, or is refused by name.

What is exact by design (checkpointing, where an average lies, TF32 on a processor) is listed with what shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import find

from modules.config.rules import problems_of
from modules.config.rules.every_setting import settings_not_yet_supported
from modules.config.rules.optimizers import weights_that_stay_zero
from modules.config.schema import Config
from modules.families.registry import FAMILIES
from modules.optim.ema import Ema
from modules.quantization.registry import FORMATS
from modules.rewards.registry import REWARDS, rewards_using
from modules.settings.edit import get_path, live_records, set_path
from modules.settings.field import FieldRecord
from modules.system.devices import Device
from tests.builders.effects import (
    CLOCKS,
    SHORT,
    in_force,
    is_of_pairs,
    left_behind,
    left_by_run,
    offered,
    run_of_everything,
    with_value,
)
from tests.builders.runs import run
from tests.unit.strategies import few, valid_values
from trainer.events import RunStarted
from trainer.methods import choosing
from trainer.preflight import check
from trainer.preflight.requirements import problems_of_packages, problems_of_speed
from trainer.run import checkpoint
from trainer.run_folder.choices import Answer


@pytest.fixture(autouse=True)
def person(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person who prefers the second image, at once."""
    monkeypatch.setattr(choosing, "answer_of", lambda request: Answer("chosen", best=1, worst=0))


@pytest.fixture(scope="module")
def base(tiny_sd: Path, tmp_path_factory: pytest.TempPathFactory) -> Config:
    return run_of_everything(tmp_path_factory.mktemp("choices"), tiny_sd)


def choices_of(config: Config) -> Iterator[tuple[Config, FieldRecord, str]]:
    for seen_in, record in offered(config):
        if is_of_pairs(seen_in, record) or seen_in.family != config.family:
            continue  # what other families have is tried on their models: test_every_setting
        for value in record.choices:
            yield seen_in, record, value


def with_choice(config: Config, record: FieldRecord, value: str) -> Config:
    if record.path == "training.method":
        return with_value(config, record.path, SHORT.get(value, {"name": value}))
    return with_value(config, record.path, {"name": value} if record.kind == "section" else value)


def is_not_yet(record: FieldRecord, value: str) -> bool:
    return bool(record.setting.not_yet) or value in record.setting.not_yet_choices


EXACT = {
    ("data.cache_location", "memory"),  # see test_cache_faults
    ("training.precision", "tfloat32"),  # a GPU's; see test_tf32_is_switched_on
    ("training.ema.mode", "temp_device"),  # see test_the_average_lies_where_it_is_asked_to
    *(
        (f"parts.{part}.checkpointing", mode)
        for part in ("unet", "text_encoder", "vae")
        for mode in ("auto", "selective", "transformer", "block", "whole")
    ),
    ("training.fallback_train_dtype", "bfloat16"),  # SD's VAE does not overflow; see test_loading
    ("training.attention", "sdpa_flash"),  # what PyTorch chooses on a CPU
    ("training.schedule", "constant"),
    ("model.family.prediction_type", "epsilon"),  # what the model says of itself
    ("model.family.zero_terminal_snr", "off"),  # as above
    *(("embeddings.dtype", dtype) for dtype in ("bfloat16", "float16")),  # there are no embeddings; see test_embeddings
    ("output.format", "auto"),  # kohya's for Stable Diffusion, as the base has it; see test_usual_adapter_form
    ("output.model_format", "diffusers"),  # says nothing of a LoRA; see test_fine_tune
    ("adapter.other_layers", "leave_out"),  # nothing to leave out; see test_keep_other_layers
    ("reward.result", "best"),  # nothing is measured here; see test_guards
    ("validation.result", "best"),  # here the last is the best; see test_validation
    (
        "training.low_precision_updates",
        "stochastic",
    ),  # nothing is in 16 bits here; see test_stand_ins and test_fine_tune
}
# Refused alone: leaves nothing to train; wants another base model.
ALONE = {
    ("concepts.0.kind", "validation"),
    ("concepts.0.caption_source", "one_file"),  # no file is chosen
    ("concepts.0.image.mask_source", "folder"),  # there is none; see test_image_versions
    ("concepts.0.kind", "regularization"),
    ("concepts.0.kind", "prior_prediction"),  # see test_prior_prediction
    ("concepts.0.kind", "prompts"),  # see test_learning_from_prompts
    ("concepts.0.kind", "pairs"),  # see test_dpo
    ("concepts.0.kind", "validation_pairs"),
    *(("model.family", name) for name in FAMILIES if name != "sd"),
    ("model.variant", "inpainting"),  # see test_inpainting_models
    ("model.variant", "depth"),  # see test_depth_models
    ("model.variant", "edit"),  # see test_editing_models
    ("model.variant", "edit_one"),  # see test_qwen_edit
    ("training.schedule", "adafactor"),  # see test_effective_rates
    ("training.schedule", "custom"),  # no class is given; see test_onetrainer_config
    *(("reward.models.0.kind", kind) for kind in rewards_using("file")),  # their files are not here
    *(("parts.vae.dtype", name) for name in FORMATS),  # refused: see test_quantized_parts
    # AlignProp refuses them.
    *(("reward.models.0.kind", name) for name, spec in REWARDS.items() if not spec.is_differentiable),
}
ELSEWHERE: set[str | tuple[str, str]] = {  # fields, and single choices
    # Functions of the step alone: test_schedules.
    *(("training.schedule", name) for name in ("polynomial", "inverse_sqrt", "wsd", "points")),
    # Each is computed, and has caches of its own, in test_quantized_parts.
    *(("parts.text_encoder.dtype", name) for name in FORMATS),
    *(("parts.unet.dtype", name) for name in FORMATS if name != "nfloat4"),
    "quantization.svd_dtype",  # each is computed in test_quantization, one in a run of test_quantized_parts
    "training.schedule.between",
    ("training.trains", "embedding"),  # there is none here; see test_embeddings
    "training.schedule.decay_shape",
    "training.loss.scaler",  # the batch here has one image: see test_losses
    "training.learning_rate_scaler",  # as above
    "training.noise.distribution",  # each is drawn in test_timesteps, one in a run of test_noise_settings
    "training.noise.stratification",  # as above
    ("training.method.trust_region", "divergence"),  # no ratio is large enough here: see test_flow_policy
    ("training.method.flow_steps", "sde"),  # of flow models, see test_flow_policy; a warning otherwise
    "training.method.held_out_reward",  # measures and never trains, whoever it is: see test_judges
    # Of several processes: test_several_processes, test_gradient_sums.
    "multi_gpu.sharding",
    "multi_gpu.reduce_precision",
    ("model.channels_last", "auto"),  # on some GPUs only: see test_layout_choice
    "training.cuda_graphs",  # only GPUs have graphs, and the results are the same: see test_graphs
    "model.compile",  # compiling takes long, and measuring it needs a GPU: see test_compile
    "training.method.sampler",  # of online DPO: each samples in test_rollout, two in runs of test_online_dpo
}


def is_chosen(config: Config, record: FieldRecord, value: str) -> bool:
    chosen = get_path(config, record.path)
    return bool((chosen.name if record.kind == "section" else chosen) == value)


def is_refused(config: Config) -> bool:
    return any(p.severity == "error" for p in settings_not_yet_supported(config)) or bool(check(config).errors)


@pytest.fixture(scope="module")
def plain(base: Config) -> str:
    return left_by_run(base)


@pytest.mark.full
def test_the_same_run_leaves_the_same_behind(base: Config, plain: str) -> None:
    assert left_behind(run(base, clocks=CLOCKS)) == plain


@pytest.mark.full
@pytest.mark.timeout(900)  # some 120 runs
@pytest.mark.parametrize("half", [0, 1])  # one for each worker
def test_every_choice_does_something_or_is_refused(base: Config, half: int) -> None:
    assert not silent_choices(islice(daily_choices(base), half, None, 2))


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_every_choice_of_the_others_does_something_or_is_refused(base: Config) -> None:
    daily = {chosen(*choice) for choice in daily_choices(base)}
    assert not silent_choices(choice for choice in choices_of(base) if chosen(*choice) not in daily)


def daily_choices(base: Config) -> Iterator[tuple[Config, FieldRecord, str]]:
    """A value of each field: adapters and optimizers have many fields in common."""
    found = set()
    for seen_in, record, value in choices_of(base):
        if record.path not in found and not is_tried_by_its_own_tests(seen_in, record, value):
            found.add(record.path)
            yield seen_in, record, value


def is_tried_by_its_own_tests(seen_in: Config, record: FieldRecord, value: str) -> bool:
    """Whether a choice is an optimizer, a sampler, or one of a method that samples images and is not AlignProp."""
    if record.path == "training.optimizer":  # test_every_optimizer, which compares all of them, too
        return value not in ("adafactor", "sgd", "schedule_free_adamw")
    if record.path == "sampling.prompts.0.sampler":  # test_sd_against_diffusers
        return value not in ("euler", "dpmpp")
    return record.path.startswith("training.method.") and seen_in.training.method.name not in ("denoise", "alignprop")


def chosen(seen_in: Config, record: FieldRecord, value: str) -> tuple[str, str, str]:
    return seen_in.model_dump_json(), record.path, value


def silent_choices(choices: Iterable[tuple[Config, FieldRecord, str]]) -> list[tuple[str, str]]:
    """Return the choices that are accepted and change nothing."""
    silent = []
    for seen_in, record, value in choices:
        before = in_force(seen_in, record)
        is_exact = (record.path, value) in EXACT or not ELSEWHERE.isdisjoint({record.path, (record.path, value)})
        if is_not_yet(record, value) or is_chosen(before, record, value) or is_exact:
            continue  # what is not there yet: test_what_is_not_there_yet_is_named
        changed = with_choice(before, record, value)
        if is_of_pairs(changed, record):
            assert {e.path.split(".")[0] for e in check(changed).errors} == {"concepts"}
            continue
        if list(problems_of_packages(changed)):
            continue  # refused by name where its package is missing: test_eight_bit
        if any(list(weights_that_stay_zero(config)) for config in (before, changed)):
            continue  # refused by name: tests/unit/preflight/test_rates.py
        if record.path == "training.attention" and list(problems_of_speed(changed)):
            continue  # refused by name where it does not run: test_attention
        if (record.path, value) in ALONE:
            page = record.path.split(".")[0]
            also = {"data"} if record.path == "model.family" else set()  # a family may need another resolution
            assert {page} <= {e.path.split(".")[0] for e in check(changed).errors} <= {page} | also
        elif not is_refused(before) and not is_refused(changed) and left_by_run(changed) == left_by_run(before):
            silent.append((record.path, value))
    return silent


def test_what_is_not_there_yet_is_named(base: Config) -> None:
    """Each field and each choice that is marked: refused at its own path, or a warning where it changes nothing."""
    for seen_in, record in offered(base):
        before = in_force(seen_in, record)
        if record.setting.only_if_trainable and record.path not in {r.path for r in live_records(before)}:
            continue
        marked = [with_choice(before, record, value) for value in sorted(record.setting.not_yet_choices)]
        if record.setting.not_yet:
            marked.append(with_value(before, record.path, another_value(before, record)))
        expected = "warning" if record.setting.not_yet == "ignored" else "error"
        for config in marked:
            found = [p.severity for p in problems_of(config) if p.path == record.path]
            assert expected in found, record.path


def another_value(config: Config, record: FieldRecord) -> Any:
    """A value that the field takes and that is not its default."""

    def is_another(value: Any) -> bool:
        return bool(get_path(with_value(config, record.path, value), record.path) != record.default)

    return find(valid_values(record), is_another, settings=few)


@pytest.mark.full
def test_what_is_called_exact_is_offered_and_exact(base: Config, plain: str) -> None:
    """Together, as far as they go together: one run has the first choice of every field, the next one the second."""
    choices = {(record.path, value): record for _, record, value in choices_of(base)}
    assert choices.keys() >= EXACT | ALONE
    by_path = {path: [v for p, v in sorted(EXACT) if p == path] for path, _ in EXACT}
    for together in zip_longest(*by_path.values()):
        config, chosen = base, dict(zip(by_path, together, strict=True))
        for path, value in chosen.items():
            if value is not None:
                config = with_choice(config, choices[path, value], value)
        assert left_behind(run(config, clocks=CLOCKS)) == plain, chosen


@pytest.mark.full
def test_tf32_is_switched_on(base: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    plain_write = checkpoint.write_state
    monkeypatch.setattr(
        "trainer.run.backups.write_state",
        lambda *a, **k: (seen.append(tf32()), plain_write(*a, **k)),
    )
    for precision in ("float32", "tfloat32"):
        run(set_path(base, "training.precision", precision)[0])
    assert list(dict.fromkeys(seen)) == [("highest", False), ("high", True)]  # the trial before the run writes too


def tf32() -> tuple[str, bool]:
    """What may be rounded to TF32: products of matrices, and convolutions."""
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32


@pytest.mark.full
def test_the_average_lies_where_it_is_asked_to(base: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    devices: list[str] = []
    plain_init = Ema.__init__

    def init(self: Ema, *arguments: Any, device: Device, **options: Any) -> None:
        devices.append(device.name)
        plain_init(self, *arguments, device=device, **options)

    monkeypatch.setattr(Ema, "__init__", init)
    elsewhere, _ = set_path(base, "general.temp_device", "cpu:1")
    for mode in ("train_device", "temp_device"):
        run(set_path(elsewhere, "training.ema.mode", mode)[0])
    assert list(dict.fromkeys(devices)) == ["cpu", "cpu:1"]  # the trial before the run has one too


@pytest.mark.daily(5)
@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("data.caption_dropout", 0.9),
        ("adapter.alpha", 7.0),
        ("adapter.dropout", 0.4),
        ("training.clip_grad_norm", 1e-4),
        ("training.accumulation_steps", 2),
        ("training.ema.decay", 0.1),
        ("training.ema.update_every_steps", 3),
        ("general.seed", 7),
        ("model.family.clip_skip", 1),
        ("data.max_aspect_ratio", 1.2),
        ("data.resolution_px", [96, "64x80"]),
        ("concepts.0.image.resolution_px", ["80x64"]),
        ("concepts.0.image.crop_jitter", True),
        ("concepts.0.image.mask_rotate_crop", True),
        ("masks.enabled", True),
        ("training.noise.min_strength", 0.5),
        ("training.noise.max_strength", 0.5),
        ("training.noise.offset_weight", 0.5),
        ("training.noise.shift", 3.0),
        ("concepts.0.repeats", 2.0),
        ("concepts.0.text.shuffle_tags", True),
        pytest.param("concepts.0.text.wildcards", True, marks=pytest.mark.full),
        pytest.param("concepts.0.text.replacements", "round => square", marks=pytest.mark.full),
        ("concepts.0.text.trigger_word", "sks"),
        pytest.param("concepts.0.text.prefix", "a photo of", marks=pytest.mark.full),
        pytest.param("concepts.0.text.suffix", ", best quality", marks=pytest.mark.full),
        pytest.param("concepts.0.text.keep_tags_separator", "round", marks=pytest.mark.full),
        pytest.param("concepts.0.text.tag_group_separator", "round", marks=pytest.mark.full),
        ("model.family.prompt_weighting", True),
        ("concepts.0.loss_weight", 3.0),
        ("parts.unet.learning_rate", 0.5),
        ("parts.text_encoder.stop_after", {"n": 1, "unit": "epoch"}),
        ("training.schedule.warmup_steps", 4),
        ("training.schedule.warmup_share", 0.5),
    ],
)
def test_a_value_that_is_set_is_used(base: Config, plain: str, path: str, value: object) -> None:
    """Daily two settings of captions: all are read in one place, which has its own tests."""
    ran = run(with_value(base, path, value), clocks=CLOCKS)
    assert ran.of(RunStarted)
    assert left_behind(ran) != plain
