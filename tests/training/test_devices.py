"""Parts and tensors are on the right device in every phase. The guard treats "cpu:1" as a second device."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from modules.config.schema import Config
from modules.data.batch import Batch
from modules.data.samples import SampleIndex
from modules.formats.lazy_tensors import concatenate, lazy
from modules.formats.safetensors_io import write_safetensors
from modules.memory.guard import DeviceGuard, DeviceMixError
from modules.memory.placement import ParkedPartError, Placement
from modules.system.devices import CPU, Device, move
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import USUAL_LAYERS, laid_over, small_config
from tests.builders.editing_models import EDITING_MODELS, parts_trained_in, with_references
from tests.builders.flow_models import FLOW_MODELS, trained_parts_of
from tests.builders.images import draw_folder
from tests.builders.matrix import full_cover, matrix
from tests.builders.runs import Ran, assert_equal_tensors, run
from trainer.data import sources
from trainer.data.sources import Prepared
from trainer.events import BackupSaved, ModelSaved, RunFailed, SampleReady, ValidationFinished, WarningRaised
from trainer.methods.denoise import Denoise
from trainer.methods.protocol import StepContext, StepLoss

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")
# Two epochs of two steps; all that can happen beside a step does so at the start, between the epochs and at the end.
EVERYTHING: dict[str, Any] = {
    "general": {"debug_checks": True},
    "training": {"ema": {"mode": "temp_device"}, "epochs": 2},
    "sampling": {
        "at_start": True,
        "every": {"n": 1, "unit": "epoch"},
        "prompts": [{"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 3.0}],
    },
    "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 1},
    "backup": {"every": {"n": 1, "unit": "epoch"}, "save_every": {"n": 1, "unit": "epoch"}},
}
FORMS: dict[str, dict[str, Any]] = {
    "kohya": {"training": {"trains": "adapter"}, "output": {"format": "kohya"}},
    "diffusers": {"training": {"trains": "adapter"}, "output": {"format": "diffusers"}},
    "single file": {"training": {"trains": "full"}, "output": {"model_format": "single_file"}},
    "folder": {"training": {"trains": "full"}, "output": {"model_format": "diffusers"}},
}
DENOISERS = ("unet", "transformer")
TRAINED_PARTS = (*DENOISERS, *ENCODERS)
MODELS = ["tiny_sd", "tiny_sdxl", *FLOW_MODELS]
WITH_TRAINED_TEXT = {"tiny_sd", "tiny_sdxl", *(name for name in FLOW_MODELS if len(trained_parts_of(name)) > 1)}
WITH_TRAINED_TEXT |= {name for name in EDITING_MODELS if len(parts_trained_in(name)) > 1}


@pytest.fixture(scope="module")
def two_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("two-sizes"), sizes=[(64, 64), (64, 64), (96, 64)])


def watched_config(model: Path, images: Path, folder: Path, *, form: str, text_is_trained: bool) -> Config:
    """A run in which everything happens, and whose result has one of the forms."""
    # A fine-tune's weights in 16 bits, so that their float32 master weights are looked at, too.
    is_whole = FORMS[form]["training"]["trains"] == "full"
    learning = {part: {"dtype": "bfloat16" if is_whole else "float32"} for part in TRAINED_PARTS}
    config = small_config(
        folder,
        model=model,
        images=images,
        adapter=USUAL_LAYERS,
        concepts=[{"path": str(images)}, {"path": str(images), "kind": "validation"}],
        parts={
            **{key: {"train": text_is_trained, **learning[key]} for key in ENCODERS},
            **{key: {"checkpointing": "block", "offload_activations": True, **learning[key]} for key in DENOISERS},
        },
    )
    name = "model" if form == "folder" else "model.safetensors"
    place = {"output": {"destination": str(folder / "out" / name)}}
    return with_references(laid_over(laid_over(laid_over(config, EVERYTHING), FORMS[form]), place))


def assert_all_went_well(ran: Ran) -> None:
    """Each thing was done at each of its moments; none was given up with a warning, as a sample that fails is."""
    assert ran.finished.outcome == "finished"
    assert [e.step for e in ran.of(SampleReady)] == [0, 2, 4]
    assert [e.step for e in ran.of(ValidationFinished)] == [0, 2, 4]
    assert [e.step for e in ran.of(BackupSaved)] == [2, 4]
    saved = {(e.step, e.is_final) for e in ran.of(ModelSaved)}  # some of them twice, as the best so far, too
    assert saved == {(2, False), (4, False), (4, True)}
    assert not [w.message for w in ran.of(WarningRaised) if "could not" in w.message]


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("model", "latent_cache", "text_cache", "text_is_trained", "temp_device", "form", "offloaded_layers"),
    [
        row
        for rows_of, models in ((partial(matrix, most_daily=9), MODELS), (full_cover, list(EDITING_MODELS)))
        for row in rows_of(
            models, [True, False], [True, False], [True, False], ["cpu:1", "cpu"], list(FORMS), [0.0, 0.5],
            possible=lambda model, latents, text, is_trained, *_: not is_trained or model in WITH_TRAINED_TEXT,
        )
    ],
)  # fmt: skip
def test_no_phase_uses_a_parked_part_or_mixes_devices(
    request: pytest.FixtureRequest,
    two_sizes: Path,
    tmp_path: Path,
    model: str,
    latent_cache: bool,
    text_cache: bool,
    text_is_trained: bool,
    temp_device: str,
    form: str,
    offloaded_layers: float,
) -> None:
    config = watched_config(
        request.getfixturevalue(model), two_sizes, tmp_path, form=form, text_is_trained=text_is_trained
    )  # fmt: skip
    ran = run(
        laid_over(
            config,
            {
                "general": {"temp_device": temp_device},
                "data": {"latent_cache": latent_cache, "text_cache": text_cache},
                "parts": {p: {"checkpointing": "block", "offload_fraction": offloaded_layers} for p in TRAINED_PARTS},
            },
        )
    )
    assert_all_went_well(ran)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("form", list(FORMS))
def test_on_a_gpu_all_the_same(any_model: Path, two_sizes: Path, tmp_path: Path, form: str, is_cached: bool) -> None:
    config = watched_config(any_model, two_sizes, tmp_path, form=form, text_is_trained=not is_cached)
    cuda = {"train_device": "cuda", "temp_device": "cpu"}
    caches = {"latent_cache": is_cached, "text_cache": is_cached}
    assert_all_went_well(run(laid_over(config, {"general": cuda, "data": caches})))


@pytest.mark.full
def test_the_guard_changes_nothing(tiny_sd: Path, images: Path, tmp_path: Path) -> None:
    weights = []
    for checks in (False, True):
        config = small_config(
            tmp_path / str(checks), model=tiny_sd, images=images,
            general={"temp_device": "cpu:1", "debug_checks": checks},
        )  # fmt: skip
        weights.append(run(config).weights)
    assert_equal_tensors(weights[0], weights[1])


@pytest.mark.daily(2)
@pytest.mark.parametrize(
    ("model", "text_cache", "precision"),
    [
        *matrix(MODELS, [True, False], ["float32", "bfloat16"]),
        *full_cover(list(EDITING_MODELS), [True, False], ["float32", "bfloat16"]),
    ],
)
def test_what_is_cached_arrives_as_what_is_encoded(
    request: pytest.FixtureRequest,
    images: Path,
    tmp_path: Path,
    model: str,
    text_cache: bool,
    precision: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On the training device, in its numbers, bit for bit the same; in batches of two sizes, some without caption."""
    folder = request.getfixturevalue(model)
    batches = watch_batches(monkeypatch)
    weights = []
    for cached in (False, True):
        config = small_config(
            tmp_path / str(cached),
            model=folder,
            images=images,
            general={"temp_device": "cpu:1", "debug_checks": True},
            data={"latent_cache": cached, "text_cache": cached and text_cache, "caption_dropout": 0.3},
            parts={key: {"train": False} for key in ENCODERS},
            training={"precision": precision, "epochs": 1},
        )
        weights.append(run(with_references(config)).weights)
    assert_equal_tensors(weights[0], weights[1])
    encoded, read = batches[: len(batches) // 2], batches[len(batches) // 2 :]
    is_fine = config.data.bucket_step_px == 16
    assert len({b["latents"].tensor.shape[2:] for b in encoded}) == (2 if is_fine else 1)
    for one, other in zip(encoded, read, strict=True):
        assert_equal_tensors({n: d.tensor for n, d in one.items()}, {n: d.tensor for n, d in other.items()})
    wanted = {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]
    counted = ("loss weights", "lengths", "tokens")
    assert {(d.device, d.tensor.dtype) for b in batches for n, d in b.items() if n not in counted} == {("cpu", wanted)}


@dataclass(frozen=True)
class Delivered:
    """A tensor as a method got it, and the logical device it was on."""

    tensor: torch.Tensor
    device: str | None


def watch_batches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Delivered]]:
    """Return the list that the tensors of every training batch are added to."""
    batches: list[dict[str, Delivered]] = []
    guards: list[DeviceGuard] = []
    plain_enter, plain_loss = DeviceGuard.__enter__, Denoise.loss

    def enter(guard: DeviceGuard) -> DeviceGuard:
        guards[:] = [guard]
        return plain_enter(guard)

    def loss(self: Denoise, batch: Batch, context: StepContext) -> StepLoss:
        assert batch.conditioning is not None
        tensors = {"latents": batch.latents_BCHW, "loss weights": batch.loss_weights_B, **batch.conditioning.tensors()}
        batches.append({n: Delivered(t.detach().clone(), guards[0].tag_of(t)) for n, t in tensors.items()})
        return plain_loss(self, batch, context)

    monkeypatch.setattr(DeviceGuard, "__enter__", enter)
    monkeypatch.setattr(Denoise, "loss", loss)
    return batches


def test_an_encoder_left_parked_is_caught(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OneTrainer#459, planted: validation after caching finds the text encoder where the cache left it."""
    plain = Placement._move

    def forgetful(self: Placement, name: str, device: Device) -> None:
        if name != "text_encoder" or device != self.train_device:
            plain(self, name, device)

    monkeypatch.setattr(Placement, "_move", forgetful)
    config = small_config(tmp_path, model=tiny_sd, images=images, general={"temp_device": "cpu:1"})
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    assert "while parked on cpu:1" in ending.message


def test_a_cached_tensor_on_the_wrong_device_is_caught(
    tiny_sd: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = sources.CachedLatents.deliver

    def misplaced(
        self: sources.CachedLatents, sample_indices: Sequence[SampleIndex], prepared: Sequence[Prepared]
    ) -> torch.Tensor:
        return move(plain(self, sample_indices, prepared), Device("cpu:1"))

    monkeypatch.setattr(sources.CachedLatents, "deliver", misplaced)
    config = small_config(
        tmp_path, model=tiny_sd, images=images, general={"temp_device": "cpu:1", "debug_checks": True}
    )
    ending = run(config).ending
    assert isinstance(ending, RunFailed)
    assert "got tensors on different devices" in ending.message


def test_the_guard_distinguishes_devices_and_allows_constants() -> None:
    with DeviceGuard() as guard:
        here, there = move(torch.ones(2), CPU), move(torch.ones(2), Device("cpu:1"))
        assert guard.tag_of(here * 2 + torch.ones(2)) == "cpu"
        with pytest.raises(DeviceMixError, match=r"cpu: \(2,\), cpu:1: \(2,\)"):
            here + there
        with pytest.raises(DeviceMixError):
            torch.cat([here, there])  # in a list
        with pytest.raises(DeviceMixError):
            torch.nn.functional.linear(here, torch.ones(3, 2), bias=move(torch.ones(3), Device("cpu:1")))
        assert guard.tag_of(torch.cat([here, here])) == "cpu"
        assert [guard.tag_of(t) for t in here.split(1)] == ["cpu", "cpu"]
        assert guard.tag_of(here + move(there, CPU)) == "cpu"
        assert guard.tag_of(here + there.sum()) == "cpu"  # a tensor without dimensions may meet any
        both = torch._foreach_mul([here, there], [here, there])  # of lists each pair for itself
        assert [guard.tag_of(t) for t in both] == ["cpu", "cpu:1"]
        with pytest.raises(DeviceMixError):
            torch._foreach_add_([here, there], [there, here])


def test_weights_on_two_devices_are_concatenated_in_a_file(tmp_path: Path) -> None:
    """The averages of SD 3's last keys and values are on one device, its queries, which nothing trains, on another."""
    with DeviceGuard():
        averaged, untrained = move(torch.ones(2), Device("cpu:1")), move(torch.zeros(2), CPU)
        write_safetensors(tmp_path / "file", {"qkv": concatenate([lazy(untrained), lazy(averaged)])}, {}, dtype=None)
    assert load_file(tmp_path / "file")["qkv"].tolist() == [0, 0, 1, 1]


def test_parts_that_may_stay_are_not_moved() -> None:
    modules = {name: torch.nn.Linear(2, 2) for name in ("unet", "vae")}
    placement = Placement(
        modules,
        train_device=CPU,
        temp_device=Device("cpu:1"),
        needed_in=lambda phase: frozenset({"unet"} if phase == "train" else {"vae"}),
        may_stay={"train": frozenset({"vae"})},
    )

    def places() -> list[str]:
        return [placement.device_of(name).name for name in modules]

    assert places() == ["cpu:1", "cpu:1"]
    placement.enter("train")
    assert places() == ["cpu", "cpu:1"]  # what may stay is not brought
    placement.enter("decode")
    assert places() == ["cpu:1", "cpu"]
    placement.enter("train")
    assert places() == ["cpu", "cpu"]


def test_placement_restores_the_former_phase_after_an_exception() -> None:
    module = torch.nn.Linear(2, 2)
    placement = Placement(
        {"part": module},
        train_device=CPU,
        temp_device=Device("cpu:1"),
        needed_in=lambda phase: frozenset({"part"} if phase == "work" else ()),
    )
    with pytest.raises(ParkedPartError, match="part ran"):
        module(torch.ones(2))
    placement.enter("rest")

    def work_and_fail() -> None:
        with placement.phase("work"):
            module(torch.ones(2))
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        work_and_fail()
    assert placement.device_of("part").name == "cpu:1"


def test_the_guard_forgets_the_tags_of_what_is_gone() -> None:
    weight = torch.ones(4, 4)
    with DeviceGuard() as guard:
        guard.retag_module(torch.nn.ParameterList([weight]), CPU)
        kept = guard.retag(weight, Device("cpu:1"))
        for _ in range(1000):
            _ = kept * 2 + 1  # two tensors of a tag each, gone at once
        assert guard.tag_of(kept) == "cpu:1"
        assert len(guard._tags) < 100


def watch_callers(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return the set that the files which run a part of a model, or a child of one, will be put into."""
    callers: set[str] = set()
    plain = Placement._refuse_parked

    def noting(self: Placement, name: str) -> Callable[[torch.nn.Module, object], None]:
        check = plain(self, name)

        def note(module: torch.nn.Module, inputs: object) -> None:
            size_conditioning = inspect.currentframe()
            callers.add(caller_outside_of_libraries(size_conditioning.f_back if size_conditioning else None))
            check(module, inputs)

        return note

    monkeypatch.setattr(Placement, "_refuse_parked", noting)
    return callers


def caller_outside_of_libraries(size_conditioning: FrameType | None) -> str:
    """Return the folder of the innermost file of the program, or that a backward pass computes something again."""
    while size_conditioning is not None:
        path = Path(size_conditioning.f_code.co_filename)
        if path.parts[-3:] == ("torch", "utils", "checkpoint.py"):
            return "recomputation"
        if path.is_relative_to(PROGRAM_ROOT) and "site-packages" not in path.parts:
            return path.relative_to(PROGRAM_ROOT).parent.as_posix()
        size_conditioning = size_conditioning.f_back
    return "nobody"


@pytest.mark.daily(1)
@pytest.mark.parametrize("checkpointing", ["block", "whole"])
def test_only_the_family_runs_a_part(
    any_model: Path, two_sizes: Path, tmp_path: Path, checkpointing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In training, recomputation, validation, samples and caches; checkpointing is what the family runs them by."""
    callers = watch_callers(monkeypatch)
    config = watched_config(any_model, two_sizes, tmp_path, form="kohya", text_is_trained=True)
    parts = {part: {"checkpointing": checkpointing} for part in TRAINED_PARTS}
    assert_all_went_well(run(laid_over(config, {"parts": parts, "general": {"debug_checks": False}})))
    families = {f"modules/families/{name}" for name in ("sd", "sdxl", "parts")} | {"modules/memory", "recomputation"}
    assert callers & families
    assert callers <= families

    plain = Denoise.loss

    def meddling(self: Denoise, batch: Batch, context: StepContext) -> StepLoss:
        context.family.parts["text_encoder"].module(input_ids=torch.zeros(1, 77, dtype=torch.long))
        return plain(self, batch, context)

    monkeypatch.setattr(Denoise, "loss", meddling)
    run(laid_over(config, {"training": {"epochs": 1}, "general": {"debug_checks": False}}))
    assert callers - families == {"tests/training"}
