"""Every kind of model, method, optimizer and input on a pretended GPU: what only a GPU refuses, found without one.

`test_pretended_gpu.py` tests the pretended GPU itself, and ways to save memory. Each row is one run in which a sample,
a validation, a backup and an average on another device happen between the steps; a row of the kinds that keep state
continues from a backup, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from modules.config.schema import Config
from modules.diffusion.flow_convention import flow_matching
from modules.families.z_image.model import ZImage
from modules.optim.optimizers.adamw import AdamW
from modules.optim.spec import OptimizerSettings
from modules.settings.edit import replace_value
from tests.builders.configs import laid_over, small_config
from tests.builders.editing_models import EDITING_MODELS
from tests.builders.flow_models import FLOW_MODELS, VARIANTS
from tests.builders.images import draw_folder, draw_mask
from tests.builders.preference import NAMES, draw_both, preference_config, settings_of, spec_of
from tests.builders.pretended_gpu import CAN_PRETEND, Counts, pretended_gpu
from tests.builders.runs import Ran, assert_lora_trained, assert_resumed, run, stop_at
from tests.training.test_clips import clips  # noqa: F401 - a fixture
from tests.training.test_devices import EVERYTHING, WITH_TRAINED_TEXT
from tests.training.test_every_optimizer import WITH_MORE_STATE, Toy, case, changed
from tests.training.test_pretended_gpu import _nvidia, config_there, two_sizes  # noqa: F401 - fixtures
from trainer.events import BackupSaved, RunFailed, SampleReady, StepFinished, ValidationFinished, WarningRaised
from trainer.step.watchdog import Watchdog

pytestmark = [
    pytest.mark.skipif(not CAN_PRETEND, reason="needs torch's build for CPUs on Linux"),
    pytest.mark.usefixtures("_nvidia"),
]
THERE: dict[str, Any] = {"general": {"train_device": "auto", "temp_device": "cpu", "debug_checks": False}}


@dataclass
class Watched:
    """A run, and where the host waited for the GPU by the end of each step."""

    ran: Ran
    waits: dict[int, Counter[str]] = field(default_factory=dict)

    @property
    def places_in_a_step(self) -> set[str]:
        """The files that wait between the outcomes of the second step and the third, each known in the next step."""
        return {place.partition(":")[0] for place in self.waits[3] - self.waits[2]}


def run_there(config: Config, **options: Any) -> Watched:
    """Train a config on a pretended GPU."""
    found = Watched(Ran())
    with pretended_gpu() as counts:
        found.ran = run(config, on_event=_noted(found, counts), **options)
    assert counts.num_operations > 500  # the work was done there
    assert not [w.message for w in found.ran.of(WarningRaised) if "could not" in w.message]
    return found


def _noted(found: Watched, counts: Counts) -> Callable[[Any, Any], None]:
    def note(event: Any, send: Any) -> None:
        if isinstance(event, StepFinished):
            found.waits[event.step] = counts.waits.copy()

    return note


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no weight be watched, which reads a value for each until it has been updated."""
    monkeypatch.setattr(Watchdog, "before_update", lambda *arguments: None)
    monkeypatch.setattr(Watchdog, "is_watching", False)


# -- models

# The average of the weights is on the offload device: the host reads the weights, and with them what the step found.
WAITING = {"modules/optim/ema.py", "trainer/step/stepper.py"}
# Fine-tunes whose layers are offloaded wait for their gradients.
OFFLOADED = {"modules/memory/transfers.py", "modules/optim/updates/sliced_step.py"}
ALSO_WAITING = {
    "tiny_hidream": {"modules/families/hidream/transformer.py"},  # the tokens of each expert are counted
    # In the code of transformers and diffusers.
    "tiny_chroma": {"modules/families/parts/t5_text.py", "modules/memory/checkpointing.py"},
    "tiny_stable_cascade": {"modules/families/parts/clip_text.py"},
    "tiny_qwen_edit_2511": {"modules/memory/checkpointing.py"},
    "tiny_hunyuan_image": {"modules/families/parts/conditioning.py"},
}

MODELS = [*FLOW_MODELS, *EDITING_MODELS, *VARIANTS]


def five_steps(config: Config) -> Config:
    """Let all that happens between epochs happen after the fifth step."""
    first, *others = config.concepts
    twice = config.model_copy(update={"concepts": (first.model_copy(update={"repeats": 3.0}), *others)})
    return replace_value(twice, "training.epochs", 1)


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize("model", [pytest.param(m, marks=() if m == "tiny_flux" else pytest.mark.full) for m in MODELS])
def test_each_model(
    request: pytest.FixtureRequest,
    two_sizes: Path,  # noqa: F811
    tmp_path: Path,
    model: str,
) -> None:
    """Cached or not, LoRA or fine-tune, with half of the layers offloaded or none, in turns; deterministic."""
    number = MODELS.index(model)
    is_cached, is_whole = bool(number % 2) or model not in WITH_TRAINED_TEXT, bool(number // 2 % 2)
    offloaded = {"checkpointing": "block", "offload_fraction": 0.5 * (number % 3 == 1)}
    config = config_there(
        request.getfixturevalue(model),
        two_sizes,
        tmp_path,
        is_cached=is_cached,
        form="folder" if is_whole else "kohya",
        general={"deterministic": True},
        parts={"transformer": offloaded, "unet": offloaded},
        training={"precision": "bfloat16" if number % 2 else "float32"},
    )
    found = run_there(five_steps(config))
    assert found.ran.finished.outcome == "finished"
    for event in (SampleReady, ValidationFinished, BackupSaved):
        assert [e.step for e in found.ran.of(event)][-1] == 5
    allowed = WAITING | ALSO_WAITING.get(model, set()) | (OFFLOADED if is_whole and number % 3 == 1 else set())
    assert found.places_in_a_step <= allowed


def _beside(image: torch.Tensor) -> torch.Tensor:
    return image + torch.ones(image.shape[-1])


def _indexed(image: torch.Tensor) -> torch.Tensor:
    return image.index_select(0, torch.arange(len(image)))


def _read(image: torch.Tensor) -> torch.Tensor:
    return image + 0.0 * image.sum().item()


@pytest.mark.full
@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(("fault", "is_refused"), [(_beside, True), (_indexed, True), (_read, False)])
def test_a_planted_fault_is_found(
    tiny_z_image: Path,
    two_sizes: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: Callable[[torch.Tensor], torch.Tensor],
    is_refused: bool,
) -> None:
    """A tensor and indices on the CPU, and a value that each step reads."""
    predict = ZImage.predict

    def faulty(self: ZImage, noisy_BCHW: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return predict(self, fault(noisy_BCHW), *args, **kwargs)

    monkeypatch.setattr(ZImage, "predict", faulty)
    with pretended_gpu() as counts:
        found = Watched(Ran())
        config = five_steps(config_there(tiny_z_image, two_sizes, tmp_path, is_cached=True))
        found.ran = run(config, on_event=_noted(found, counts))
    if is_refused:
        assert isinstance(found.ran.ending, RunFailed)
        assert "expected all tensors to be on the same device" in found.ran.ending.message
    else:
        assert found.places_in_a_step - WAITING == {"trainer/methods/denoise.py"}


# -- methods


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_both(tmp_path_factory.mktemp("drawn"))


@pytest.mark.full
@pytest.mark.parametrize("method", NAMES)
def test_each_method(request: pytest.FixtureRequest, drawn: Path, tmp_path: Path, method: str) -> None:
    """On a model of flow matching where the method trains one."""
    is_flow = not spec_of(method).refusal(settings_of(method), flow_matching())
    model: Path = request.getfixturevalue("tiny_z_image" if is_flow else "tiny_sd")
    happens = {name: EVERYTHING[name] for name in ("sampling", "backup")} | {
        "training": {"ema": {"mode": "temp_device"}}
    }
    config = preference_config(tmp_path, model=model, drawn=drawn, method=method, **happens)
    found = run_there(laid_over(config, {**THERE, "reward": {"measure_every": {"n": 1, "unit": "epoch"}}}))
    assert found.ran.finished.outcome == "finished"
    assert found.ran.of(SampleReady)
    assert found.ran.of(BackupSaved)
    assert_lora_trained(found.ran)


# -- optimizers

ROUNDINGS = [None, "master", "stochastic"]


@pytest.mark.parametrize(
    "settings",
    [s if s == AdamW() else pytest.param(s, marks=pytest.mark.full) for s in WITH_MORE_STATE],
    ids=case,
)
def test_each_optimizer_has_its_state_there_and_restores_it(settings: OptimizerSettings) -> None:
    """Updates of float32, of 16 bits with master weights, and rounded stochastically; a resumed run ends the same."""
    for rounding in ROUNDINGS:
        with pretended_gpu():
            toy = Toy(settings, rounding=rounding, device="cuda")
            toy.take(range(2))
            devices = {t.device.type for s in toy.optimizer.state.values() for t in _tensors(s) if t.dim()}
            other = toy.resumed(settings, rounding=rounding, device="cuda")
            toy.take([2])
            other.take([2])
            assert devices == (set() if case(settings) in ("sgd", "sgd_8bit") else {"cuda"})  # no momentum, no state
            assert changed(toy.values(), other.values()) == set()


def _tensors(state: dict[str, Any]) -> list[torch.Tensor]:
    return [value for value in state.values() if isinstance(value, torch.Tensor)]


CONTINUED: dict[str, dict[str, Any]] = {
    "LoRA, AdamW 8-bit": {"optimizer": {"name": "adamw_8bit", "min_8bit_size": 16}},
    "LoRA, Prodigy Plus": {"optimizer": {"name": "prodigy_plus_schedule_free"}, "learning_rate": 1.0},
    "fine-tune, Muon, master weights": {
        "trains": "full",
        "optimizer": {"name": "muon"},
        "low_precision_updates": "master",
    },
    "fine-tune, schedule-free, stochastic": {
        "trains": "full",
        "optimizer": {"name": "schedule_free_adamw"},
        "low_precision_updates": "stochastic",
    },
    "fine-tune, fused Adafactor": {
        "trains": "full",
        "optimizer": {"name": "adafactor", "fused_back_pass": True},
        "low_precision_updates": "stochastic",
        "clip_grad_norm": None,
    },
}


@pytest.mark.full
@pytest.mark.parametrize("name", CONTINUED)
def test_a_run_that_is_stopped_there_continues_there(
    tiny_sd: Path,
    two_sizes: Path,  # noqa: F811
    tmp_path: Path,
    name: str,
) -> None:
    changes = {
        "training": {"ema": {"mode": "temp_device"}, **CONTINUED[name]},
        "parts": {"unet": {"dtype": "bfloat16"}, "text_encoder": {"dtype": "bfloat16"}},
        **THERE,
    }
    configs = [small_config(tmp_path / part, model=tiny_sd, images=two_sizes, **changes) for part in ("a", "b")]
    straight = run_there(configs[0]).ran
    with pretended_gpu():
        first = run(configs[1], on_event=stop_at(2))
        second = run(configs[1], resume_from=Path(first.finished.backup_path))
    assert_resumed(straight, first, second)


# -- inputs


@pytest.mark.full
@pytest.mark.parametrize("kind", ["masks", "prior", "embedding", "embedding and LoRA", "VAE"])
def test_each_kind_of_input(tiny_sd: Path, two_sizes: Path, tmp_path: Path, kind: str) -> None:  # noqa: F811
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 4, captions=["a <zog>", "a disc"] * 2)
    draw_mask(images / "000-masklabel.png")
    prior = draw_folder(tmp_path / "prior", sizes=[(64, 64)] * 2, captions=["a square"])
    concepts = [{"path": str(images)}, {"path": str(images), "kind": "validation"}]
    words = {"embeddings": {"words": [{"placeholder": "<zog>", "initial_text": "cat"}]}}
    kinds: dict[str, dict[str, Any]] = {
        "masks": {"masks": {"enabled": True, "unmasked_weight": 0.2, "prior_preservation_weight": 0.5}},
        "prior": {"concepts": [*concepts, {"path": str(prior), "kind": "prior_prediction"}]},
        "embedding": {"training": {"trains": "embedding", "learning_rate": 1e-2}, **words},
        "embedding and LoRA": words,
        "VAE": {"training": {"trains": "vae"}, "sampling": {"prompts": []}},
    }
    config = small_config(tmp_path, model=tiny_sd, images=images)
    config = laid_over(laid_over(config, {"concepts": concepts, **EVERYTHING}), kinds[kind])
    found = run_there(laid_over(config, THERE))
    assert found.ran.finished.outcome == "finished"
    assert found.ran.of(SampleReady)
    assert found.ran.of(ValidationFinished)


@pytest.mark.full
def test_clips(tiny_hunyuan_video: Path, clips: Path, tmp_path: Path) -> None:  # noqa: F811
    config = small_config(tmp_path, model=tiny_hunyuan_video, images=clips, masks={"enabled": True})
    found = run_there(laid_over(config, {**THERE, "training": {"epochs": 1}}))
    assert found.ran.finished.outcome == "finished"
