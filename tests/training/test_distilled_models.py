"""Training for distilled models: with a training adapter, and on a base model that is sampled as another one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from benchmarks.gguf_file import write_gguf
from modules.config.codec import decode, encode
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.families.registry import FAMILIES
from modules.families.spec import FamilySpec
from modules.memory.other_weights import OtherWeights
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders.configs import family_of, laid_over, small_config
from tests.builders.flow_models import FLOW_MODELS, FlowModel, flow_model
from tests.builders.flux import write_flux_folder
from tests.builders.models import write_sd_folder
from tests.builders.pipelines import load_tiny
from tests.builders.ranks import OtherProcess, run_on_two
from tests.builders.runs import Ran, assert_equal_tensors, errors_of, losses, run
from tests.builders.standalone import generate_samples
from tests.builders.training_adapters import WEIGHTS, Layers, adapter_layers, write_adapter, write_distilled
from trainer.__main__ import main
from trainer.commands import Command, Stop
from trainer.events import (
    BackupSaved,
    Event,
    SampleProgress,
    SampleReady,
    StepFinished,
    ValidationFinished,
    WarningRaised,
)
from trainer.jobs.sample_images import read_settings
from trainer.preflight import check
from trainer.preflight.run_budget import memory_estimate
from trainer.run.machine import machine_of
from trainer.run.model import LoadedModel, load_model

pytestmark = pytest.mark.usefixtures("one_thread")
SD_BLOCK = "mid_block.attentions.0.transformer_blocks.0"
PROMPT = {"prompt": "a disc", "width_px": 64, "height_px": 64, "steps": 2, "guidance": 1.0, "sampler": "euler"}


FIRST, *OTHERS = FLOW_MODELS


def flow_model_of(spec: FamilySpec) -> FlowModel:
    """The test's model of a family."""
    return next(model for model in map(flow_model, FLOW_MODELS) if model.family == spec.name)


@pytest.fixture(scope="module", params=[FIRST, *(pytest.param(name, marks=pytest.mark.full) for name in OTHERS)])
def model(request: pytest.FixtureRequest) -> Path:
    folder: Path = request.getfixturevalue(request.param)
    return folder


@pytest.fixture(scope="module")
def spec(model: Path) -> FamilySpec:
    return FAMILIES[family_of(model)]


@pytest.fixture(scope="module")
def folder(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distilled")


@pytest.fixture(scope="module")
def config(model: Path, spec: FamilySpec, folder: Path, images: Path) -> Config:
    """A run of a few steps with samples at both ends, validation and backups, on two logical devices under guard."""
    places = flow_model_of(spec).places
    return laid_over(
        small_config(folder, model=model, images=images),
        {
            "general": {"temp_device": "cpu:1", "debug_checks": True},
            "model": {"family": dict.fromkeys(places, str(model))},
            "data": {"latent_cache": True, "text_cache": True},
            "training": {"epochs": 1, "learning_rate": 0.01},
            "parts": {name: {"train": False} for name in spec.names_of("text_encoder")},
            "adapter": {"layers": "custom", "custom_layers": "to_q, to_v"},
            "concepts": [{"path": str(images)}, {"path": str(images), "kind": "validation"}],
            "validation": {"every": {"n": 1, "unit": "epoch"}, "num_timesteps": 1},
            "sampling": {"at_start": True, "at_end": True, "prompts": [PROMPT, {**PROMPT, "seed": 7, "guidance": 3.0}]},
            "backup": {"every": {"n": 2, "unit": "step"}, "keep": 0},
            "output": {"dtype": "float32", "format": "diffusers"},
        },
    )


@pytest.fixture(scope="module")
def layers(model: Path) -> Layers:
    return adapter_layers(model)


@pytest.fixture(scope="module")
def adapter(layers: Layers, model: Path, spec: FamilySpec, folder: Path) -> Path:
    return write_adapter(folder / "adapter.safetensors", layers, spec.denoiser.name, model=model)


@pytest.fixture(scope="module")
def plain(config: Config) -> Ran:
    """The run without anything."""
    return run(config)


@pytest.fixture(scope="module")
def with_adapter(config: Config, adapter: Path) -> Ran:
    return run(laid_over(config, {"model": {"training_adapter": str(adapter)}}))


@pytest.fixture(scope="module")
def merged_model(model: Path, adapter: Path, folder: Path) -> Path:
    """The base model with the adapter merged into a copy."""
    merged = folder / "merged"
    assert main(["lora-merge", str(model), str(merged), str(adapter)]) == 0
    return merged


@pytest.fixture(scope="module")
def other_model(model: Path, folder: Path) -> Path:
    """Another model of the same size, with a scheduler of its own: the distilled model."""
    return write_distilled(folder / "other-turbo", model, shift_terminal=0.2)


@pytest.fixture(scope="module")
def on_other_model(config: Config, other_model: Path) -> Ran:
    return run(laid_over(config, {"sampling": {"model": str(other_model)}}))


def validated(ran: Ran) -> list[float]:
    return [e.loss for e in ran.of(ValidationFinished)]


def images_of(ran: Ran) -> list[np.ndarray]:
    assert not [w.message for w in ran.of(WarningRaised) if "samples" in w.message]
    return [np.asarray(Image.open(e.path), dtype=int) for e in ran.of(SampleReady)]


def distance(ours: list[Any], theirs: list[Any]) -> float:
    return max(
        float(np.abs(np.asarray(a, dtype=int) - np.asarray(b, dtype=int)).max())
        for a, b in zip(ours, theirs, strict=True)
    )


def weights_of(path: str) -> dict[str, torch.Tensor]:
    return load_file(path)


def loaded(config: Config) -> LoadedModel:
    return load_model(config, machine_of(config.general, config.training.precision))


# -- a training adapter


@pytest.mark.full
def test_a_run_with_a_training_adapter_is_one_on_the_merged_model_and_sampled_as_one_without(
    config: Config, plain: Ran, with_adapter: Ran, merged_model: Path
) -> None:
    on_merged = run(laid_over(config, {"model": {"base_model": str(merged_model)}}))
    assert losses(with_adapter) == pytest.approx(losses(on_merged), rel=1e-5)
    assert losses(with_adapter) != pytest.approx(losses(plain), rel=1e-3)
    assert validated(with_adapter) == pytest.approx(validated(on_merged), rel=1e-5)
    result, expected = (weights_of(ran.finished.model_path) for ran in (with_adapter, on_merged))
    assert result.keys() == expected.keys()  # the trained layers alone
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-6)
    first = images_of(with_adapter)[:2]
    assert distance(first, images_of(plain)[:2]) <= 1  # before the first step
    assert distance(first, images_of(on_merged)[:2]) > 8
    # After it: what the result does to the base model, with no trace of the adapter.
    alone = generate_samples(config, Path(with_adapter.finished.model_path))
    assert distance(images_of(with_adapter)[-2:], alone) <= 1


def test_it_resumes_to_the_same_weights(config: Config, with_adapter: Ran, adapter: Path) -> None:
    backup = Path(with_adapter.of(BackupSaved)[0].path)
    resumed = run(laid_over(config, {"model": {"training_adapter": str(adapter)}}), resume_from=backup)
    assert_equal_tensors(resumed.weights, with_adapter.weights)


def test_every_naming_of_its_layers_is_read(
    config: Config, layers: Layers, adapter: Path, model: Path, spec: FamilySpec, tmp_path: Path
) -> None:
    """diffusers', kohya's, and those of other programs for the family: ai-toolkit and ComfyUI."""
    kohya = tmp_path / "kohya.safetensors"
    assert main(["convert", str(adapter), str(kohya), "--to", "kohya"]) == 0
    before = dict(load_tiny(model).denoiser.named_parameters())
    for file in (adapter, kohya, *flow_model_of(spec).other_forms(adapter, tmp_path)):
        merged = loaded(laid_over(config, {"model": {"training_adapter": str(file)}}))
        weights = dict(merged.family.parts[spec.denoiser.name].module.named_parameters())
        for path, (down, up) in layers.items():
            found = weights.get(f"{path}.weight", weights.get(f"{path}.base_layer.weight"))
            torch.testing.assert_close(found, before[f"{path}.weight"] + up @ down, rtol=1e-5, atol=1e-6)
        merged.placement.close()


MEMORY: dict[str, dict[str, Any]] = {
    "int8": {"denoiser": {"dtype": "int8"}},
    "nfloat4": {"denoiser": {"dtype": "nfloat4"}},
    "bfloat16": {"denoiser": {"dtype": "bfloat16"}, "training": {"precision": "bfloat16"}},
    "lokr": {"adapter": {"name": "lokr", "rank": 2, "factor": 4}, "output": {"format": "kohya"}},
    "offload": {"denoiser": {"checkpointing": "block", "offload_fraction": 0.6}},
}


def saving(memory: str, spec: FamilySpec) -> dict[str, Any]:
    """The changes of a config that save memory."""
    changes = dict(MEMORY[memory])
    denoiser = changes.pop("denoiser", None)
    return changes | ({"parts": {spec.denoiser.name: denoiser}} if denoiser else {})


@pytest.mark.daily(1)
@pytest.mark.parametrize("memory", MEMORY)
def test_it_works_with_what_saves_memory(
    memory: str,
    config: Config,
    spec: FamilySpec,
    plain: Ran,
    with_adapter: Ran,
    adapter: Path,
    layers: Layers,
    merged_model: Path,
) -> None:
    """It is merged before quantizing, as a file's weights are, and taken away from samples: they are nearly those
    without it.
    """
    merging = laid_over(config, {"model": {"training_adapter": str(adapter)}})
    ran = run(laid_over(merging, saving(memory, spec), replaced=("adapter",)))
    quantized = {key: value for key, value in saving(memory, spec).items() if key != "adapter"}
    expected = generate_samples(laid_over(config, quantized), None)
    off = np.mean([np.abs(a - np.asarray(b, int)).mean() for a, b in zip(images_of(ran), expected, strict=False)])
    chooses = any(".experts." in path for path in layers)  # rounding lets some tokens choose other experts
    assert off < {"nfloat4": 16, "bfloat16": 2}.get(memory, 1) * (2 if chooses else 1)
    unsampled = laid_over(config, {"model": {"base_model": str(merged_model)}, "sampling": {"prompts": []}})
    on_merged = run(laid_over(unsampled, saving(memory, spec), replaced=("adapter",)))
    loss, expected_loss, merged, without = (validated(each)[0] for each in (ran, on_merged, with_adapter, plain))
    # Rounding to NF4 can change the loss as much as the adapter, but changes it equally in both.
    bound = 0.2 if memory == "bfloat16" else 0.01
    assert abs(loss - expected_loss) < bound * abs(merged - without)


def test_bad_training_adapters_are_refused_before_loading(
    config: Config, layers: Layers, tiny_sd: Path, tmp_path: Path
) -> None:
    from tests.training.test_lora_tools import write_lora

    def refused(file: Path) -> str:
        with pytest.raises(DarkroomError):
            loaded(laid_over(config, {"model": {"training_adapter": str(file)}}))
        return errors_of(config, model={"training_adapter": str(file)})["model.training_adapter"]

    of_sd = write_lora(tmp_path / "sd.safetensors", tiny_sd, seed=1)
    assert "that this model does not have" in refused(of_sd)
    unmatched = write_adapter(
        tmp_path / "more.safetensors", {**layers, "layers.7.attention.to_q": (torch.zeros(2, 32), torch.zeros(32, 2))}
    )
    assert "has 1 layer that this model does not have; the first is" in refused(unmatched)
    wide = {next(iter(layers)): (torch.zeros(2, 48), torch.zeros(32, 2))}
    assert "does not fit the base model" in refused(write_adapter(tmp_path / "wide.safetensors", wide))
    assert (
        "does not exist"
        in errors_of(config, model={"training_adapter": str(tmp_path / "none")})["model.training_adapter"]
    )
    plain_file = tmp_path / "other.safetensors"
    save_file({"x": torch.zeros(2)}, plain_file)
    assert "is not a LoRA" in refused(plain_file)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"training": {"trains": "full"}}, "A fine-tune cannot use a training adapter"),
        ({"adapter": {"decompose": True}}, "DoRA depends on the weights"),
    ],
)
def test_what_would_keep_the_adapter_in_the_result_is_refused(
    config: Config, adapter: Path, changes: dict[str, Any], what: str
) -> None:
    message = errors_of(config, model={"training_adapter": str(adapter)}, **changes)["model.training_adapter"]
    assert message.startswith(what)


def test_an_oft_is_refused_too(config: Config, adapter: Path) -> None:
    tree = encode(laid_over(config, {"model": {"training_adapter": str(adapter)}}))
    oft = decode({**tree, "adapter": {"name": "oft"}}).config
    assert any(p.path == "model.training_adapter" for p in check(oft).errors)


def test_a_start_file_whose_layers_depend_on_the_weights_is_refused(
    config: Config, adapter: Path, layers: Layers, tmp_path: Path
) -> None:
    first, *_ = layers
    tensors = load_file(write_adapter(tmp_path / "start.safetensors", layers, config.family.denoiser.name))
    dora = {f"{config.family.denoiser.name}.{first}.lora_magnitude_vector": torch.ones(len(layers[first][1]))}
    save_file(tensors | dora, tmp_path / "dora.safetensors")
    for name, is_refused in (("start", False), ("dora", True)):
        start = {"start_from": str(tmp_path / f"{name}.safetensors")}
        found = errors_of(config, model={"training_adapter": str(adapter)}, adapter=start)
        assert ("adapter.start_from" in found) == is_refused


# -- a sampling model


@pytest.mark.full
def test_samples_are_those_of_the_sampling_model_with_the_result_on_top(
    config: Config, plain: Ran, on_other_model: Ran, other_model: Path
) -> None:
    """With its weights and the shift of its scheduler; training and validation are untouched."""
    assert losses(on_other_model) == losses(plain)
    assert validated(on_other_model) == validated(plain)
    assert_equal_tensors(on_other_model.weights, plain.weights)
    lora = Path(on_other_model.finished.model_path)
    on_other = with_denoiser_of(config, other_model)
    assert distance(images_of(on_other_model)[:2], generate_samples(on_other, None)) <= 1
    assert distance(images_of(on_other_model)[-2:], generate_samples(on_other, lora)) <= 1
    assert distance(images_of(on_other_model), images_of(plain)) > 8


def with_denoiser_of(config: Config, other: Path) -> Config:
    """The config of a model with the denoiser and scheduler of another one, and the other parts of its base model."""
    base = Path(config.model.base_model)
    mixed = other.parent / "mixed"
    if not mixed.exists():
        shutil.copytree(base, mixed)
        for name in (config.family.denoiser.name, "scheduler"):
            shutil.rmtree(mixed / name, ignore_errors=True)  # a modular pipeline may have no scheduler
            shutil.copytree(other / name, mixed / name)
    return laid_over(config, {"model": {"base_model": str(mixed)}})


def test_the_file_of_a_transformer_serves_as_well(
    config: Config, other_model: Path, on_other_model: Ran, tmp_path: Path
) -> None:
    """The shift is then the base model's: a file has no scheduler. Also with a training adapter, which it replaces."""
    file = tmp_path / "other.safetensors"  # a name with "turbo" would mark Krea 2's, which has a shift of its own
    shutil.copy(other_model / config.family.denoiser.name / WEIGHTS, file)
    model = loaded(laid_over(config, {"sampling": {"model": str(file)}}))
    assert model.sampled is not None
    assert model.sampled.family.process.spec.flow == model.family.process.spec.flow
    module = model.family.parts[config.family.denoiser.name].module
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    with model.placement.phase("sample_denoise"), model.sampled.active():
        theirs = load_file(file)
        now = {n.replace(".base_layer", ""): p.detach() for n, p in module.named_parameters() if "lora_" not in n}
        assert_equal_tensors({n: theirs[n] for n in now}, now)
    assert_equal_tensors(dict(module.named_parameters()), before)
    model.placement.close()


def test_a_stop_while_sampling_gives_the_base_model_back(config: Config, adapter: Path, other_model: Path) -> None:
    """And the two sets of weights are never on the training device together."""
    both = {"model": {"training_adapter": str(adapter)}, "sampling": {"model": str(other_model)}}
    model = loaded(laid_over(config, both))
    module = model.family.parts[config.family.denoiser.name].module
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    from trainer.callbacks.image_sampler import ImageSampler
    from trainer.commands import StopRequested
    from trainer.step.precision import Precision

    places: list[tuple[str, str]] = []

    def stop() -> None:
        device_of = model.placement.device_of
        places.append((device_of(config.family.denoiser.name).name, device_of("sampling model").name))
        raise StopRequested("stopped")

    model.placement.enter("train")
    sampler = ImageSampler(model.family, model.placement, CPU, Precision("float32", CPU), model.sampled)
    with pytest.raises(StopRequested):
        sampler.sample([config.sampling.prompts[0]], on_step=stop)
    assert places == [("cpu", "cpu:1")]
    assert model.placement.device_of(config.family.denoiser.name).name == "cpu"
    assert_equal_tensors(dict(module.named_parameters()), before)
    model.placement.close()


@pytest.mark.full
def test_a_run_that_is_stopped_while_it_samples_resumes_to_the_same_weights(
    config: Config, plain: Ran, other_model: Path, tmp_path: Path
) -> None:
    steps = 0

    def stop(event: Event, send: Callable[[Command], None]) -> None:
        nonlocal steps
        steps += isinstance(event, StepFinished)
        if isinstance(event, SampleProgress) and steps == 2:
            send(Stop())

    sampling = {"model": str(other_model), "every": {"n": 2, "unit": "step"}, "at_start": False}
    workspace = {"general": {"workspace_dir": str(tmp_path)}}
    watched = laid_over(laid_over(config, {"sampling": sampling}), workspace)
    stopped = run(watched, on_event=stop)
    assert stopped.finished.outcome == "stopped"
    resumed = run(watched, resume_from=Path(stopped.finished.backup_path))
    assert_equal_tensors(resumed.weights, plain.weights)


@pytest.mark.daily(1)
@pytest.mark.parametrize("memory", ["int8", "nfloat4", "offload", "bfloat16"])
def test_a_sampling_model_works_with_what_saves_memory(
    memory: str, config: Config, spec: FamilySpec, other_model: Path, adapter: Path, on_other_model: Ran
) -> None:
    """With the formats of the base model, and no part of the training adapter."""
    both = {"model": {"training_adapter": str(adapter)}, "sampling": {"model": str(other_model)}}
    ran = run(laid_over(laid_over(config, both), saving(memory, spec)))
    alone = generate_samples(laid_over(with_denoiser_of(config, other_model), saving(memory, spec)), None)
    found = images_of(ran)[:2]
    if memory == "bfloat16":  # Sana's autoencoder saturates at single pixels
        assert np.mean([np.abs(a - np.asarray(b, int)).mean() for a, b in zip(found, alone, strict=True)]) < 2
    else:
        assert distance(found, alone) <= 1


def test_the_sample_verb_draws_with_the_sampling_model(
    config: Config, on_other_model: Ran, other_model: Path, tmp_path: Path
) -> None:
    """From a backup of the run, as the run itself sampled last; from its config, as it sampled first."""
    run_dir = Path(on_other_model.finished.backup_path).parent.parent
    samples = images_of(on_other_model)
    for source, out, expected in (
        (["--backup", on_other_model.finished.backup_path], tmp_path / "last", samples[-2:]),
        ([str(run_dir / "config.json")], tmp_path / "first", samples[:2]),
    ):
        assert main(["sample", *source, "--out", str(out)]) == 0
        found = [np.asarray(Image.open(f), dtype=int) for f in sorted(out.glob("*.png"))]
        assert distance(found, expected) <= 1
    assert read_settings(next((tmp_path / "first").glob("*.png")))["model"] == str(other_model)


@pytest.mark.full
def test_sampling_models_that_do_not_fit_are_refused_before_loading(
    config: Config, spec: FamilySpec, tiny_sd: Path, other_model: Path, tmp_path: Path
) -> None:
    def refused(place: Path, **sections: Any) -> str:
        return errors_of(config, sampling={"model": str(place)}, **sections)["sampling.model"]

    assert f"is not a {spec.label} model" in refused(tiny_sd)
    assert refused(tmp_path / "none").endswith("does not exist.")
    incomplete = tmp_path / "incomplete"
    shutil.copytree(other_model, incomplete)
    (incomplete / spec.denoiser.name / WEIGHTS).unlink()
    assert "is incomplete" in refused(incomplete)
    one_file = tmp_path / "one.safetensors"
    weights = load_file(other_model / spec.denoiser.name / WEIGHTS)
    save_file({name: tensor for name, tensor in weights.items() if name != next(iter(weights))}, one_file)
    assert "cannot be drawn with" in refused(one_file)
    deeper = tmp_path / "deeper"
    shutil.copytree(other_model, deeper)
    settings_file = deeper / spec.denoiser.name / "config.json"
    settings_file.write_text(json.dumps(deepened(json.loads(settings_file.read_text()))))
    assert "has another architecture than the base model" in refused(deeper)
    assert "A fine-tune cannot be sampled" in refused(other_model, training={"trains": "full"})


def deepened(settings: dict[str, Any]) -> dict[str, Any]:
    """The config of a model with a block more; `llama_layers` has an entry for each."""
    if "down_num_layers_per_block" in settings:
        first, *others = settings["down_num_layers_per_block"]
        return {**settings, "down_num_layers_per_block": [first + 1, *others]}
    depth = next(key for key in settings if key in ("n_layers", "num_layers", "depth"))
    of_blocks = {key: [*settings[key], 0] for key in settings if key == "llama_layers"}
    return {**settings, depth: settings[depth] + 1, **of_blocks}


def test_weights_of_another_architecture_are_not_exchanged() -> None:
    with pytest.raises(DarkroomError, match=r"weight is \(3, 3\) in float32 where the base model has \(3, 2\)"):
        OtherWeights(torch.nn.Linear(2, 3), torch.nn.Linear(3, 3), name="other")
    with pytest.raises(DarkroomError, match="bias is missing"):
        OtherWeights(torch.nn.Linear(2, 3), torch.nn.Linear(2, 3, bias=False), name="other")


def test_the_estimate_knows_both(
    config: Config, model: Path, spec: FamilySpec, adapter: Path, other_model: Path, layers: Layers
) -> None:
    sizes = {Size(64, 64): 4}
    plain = memory_estimate(config, sizes)
    both = {"model": {"training_adapter": str(adapter)}, "sampling": {"model": str(other_model)}}
    found = memory_estimate(laid_over(config, both), sizes)
    same_device = memory_estimate(laid_over(laid_over(config, both), {"general": {"temp_device": "cpu"}}), sizes)
    assert None not in (plain, found, same_device)
    values = sum(down.numel() + up.numel() for down, up in layers.values())
    assert dict(found.phase("sampling").parts)["training adapter"] == 4 * values  # type: ignore[union-attr]
    assert found.phase("training") == plain.phase("training")
    weights = sum(p.numel() for p in load_tiny(model).parts[spec.denoiser.name].module.parameters())
    assert dict(same_device.phase("training").parts)["sampling model"] == 4 * weights  # type: ignore[union-attr]


@pytest.mark.full
def test_a_distilled_model_may_lack_an_input_of_the_base_model(tiny_flux: Path, images: Path, tmp_path: Path) -> None:
    """dev reads the guidance scale and schnell does not: samples on schnell are its own, whatever the scale."""
    schnell = write_flux_folder(tmp_path / "schnell", guidance_embeds=False)
    prompts = [{**PROMPT, "guidance": guidance} for guidance in (1.0, 4.0)]
    config = laid_over(
        small_config(tmp_path, model=tiny_flux, images=images),
        {
            "general": {"temp_device": "cpu:1", "debug_checks": True},
            "model": {"family": {"name": "flux", "text_tokens": 32}},  # prompts are encoded as for the base model
            "training": {"epochs": 1},
            "sampling": {"at_start": True, "prompts": prompts, "model": str(schnell)},
        },
    )
    alone = tmp_path / "flux1-schnell.safetensors"
    assert main(["convert", str(schnell), str(alone), "--to", "single", "--dtype", "float32"]) == 0
    expected = generate_samples(with_denoiser_of(config, schnell), None)
    for model in (schnell, alone):
        sampled = laid_over(config, {"sampling": {"model": str(model)}})
        assert not check(sampled).errors
        assert distance(images_of(run(sampled)), expected) <= 1
    back = laid_over(config, {"model": {"base_model": str(schnell)}})
    assert "has another architecture" in errors_of(back, sampling={"model": str(tiny_flux)})["sampling.model"]
    dev = tmp_path / "flux1-dev.safetensors"
    assert main(["convert", str(tiny_flux), str(dev), "--to", "single"]) == 0
    assert "it has 4 other weights" in errors_of(back, sampling={"model": str(dev)})["sampling.model"]
    broken = tmp_path / "broken.safetensors"
    save_file({n: t for n, t in load_file(alone).items() if "final_layer" not in n}, broken)
    assert "it lacks 4 of its weights" in errors_of(config, sampling={"model": str(broken)})["sampling.model"]


@pytest.mark.full
def test_two_processes_share_the_samples(config: Config, other_model: Path, adapter: Path, tmp_path: Path) -> None:
    """Each has both models, and draws what one process draws."""
    both = {"model": {"training_adapter": str(adapter)}, "sampling": {"model": str(other_model)}}
    general = {"temp_device": "cpu", "debug_checks": False, "workspace_dir": str(tmp_path)}
    shared = laid_over(laid_over(config, both), {"general": general})
    alone, other = run(shared), OtherProcess()
    try:
        ran, ending = run_on_two(other, shared)
    finally:
        other.close()
    assert ending["outcome"] == ran.finished.outcome == "finished"
    assert distance(images_of(ran), images_of(alone)) <= 1


# -- packed files, and models with a UNet


def packed_file(denoiser: Path, file: Path, kind: str) -> Path:
    write_gguf(file, load_file(denoiser / WEIGHTS), kind=kind, flattens=False)
    return file


@pytest.mark.full
def test_packed_weights_get_the_adapter_beside_them_and_are_exchanged(
    config: Config, model: Path, other_model: Path, adapter: Path, tmp_path: Path
) -> None:
    """Only layers that a GGUF file has no blocks for get the adapter merged; the packed ones differ in type, too."""
    part = config.family.denoiser.name
    file = packed_file(model / part, tmp_path / "a.gguf", "Q8_0")
    other = packed_file(other_model / part, tmp_path / "b.gguf", "Q5_0")
    packed = laid_over(config, {"parts": {part: {"dtype": "gguf", "file": str(file)}}})
    assert not check(packed).errors
    plain, found, there = (
        run(laid_over(packed, changes))
        for changes in (
            {},
            {"model": {"training_adapter": str(adapter)}},
            {"model": {"training_adapter": str(adapter)}, "sampling": {"model": str(other)}},
        )
    )
    assert losses(found) == losses(there) != losses(plain)
    assert distance(images_of(found)[:2], images_of(plain)[:2]) <= 1
    expected = generate_samples(laid_over(packed, {"parts": {part: {"file": str(other)}}}), None)
    assert distance(images_of(there)[:2], expected) <= 1
    unpacked = other_model / part / WEIGHTS
    assert "is not a GGUF file" in errors_of(packed, sampling={"model": str(unpacked)})["sampling.model"]


@pytest.mark.full
@pytest.mark.parametrize("form", ["checkpoint", "folder"])
def test_a_unet_is_trained_for_its_distilled_model(form: str, images: Path, tiny_sd: Path, tmp_path: Path) -> None:
    """Of a checkpoint with all parts only the UNet is used; a text encoder is trained, too."""
    other = write_sd_folder(tmp_path / "turbo", seed=5)
    if form == "checkpoint":
        assert main(["convert", str(other), str(tmp_path / "turbo.safetensors"), "--to", "single"]) == 0
        other = tmp_path / "turbo.safetensors"
    layers = {f"{SD_BLOCK}.attn{n}.to_q": (torch.randn(2, 32), torch.randn(32, 2)) for n in (1, 2)}
    adapter = write_adapter(tmp_path / "adapter.safetensors", layers, "unet")
    config = laid_over(
        small_config(tmp_path, model=tiny_sd, images=images),
        {
            "general": {"temp_device": "cpu:1", "debug_checks": True},
            "training": {"epochs": 1},
            "sampling": {"at_start": True, "at_end": True, "prompts": [{**PROMPT, "sampler": "lcm"}]},
            "output": {"dtype": "float32"},
        },
    )
    plain = run(config)
    tuned = run(laid_over(config, {"model": {"training_adapter": str(adapter)}}))
    assert distance(images_of(tuned)[:1], images_of(plain)[:1]) <= 1
    assert losses(tuned) != losses(plain)
    on_other = run(laid_over(config, {"sampling": {"model": str(other)}}))
    assert losses(on_other) == losses(plain)
    model = loaded(laid_over(config, {"sampling": {"model": str(other)}}))
    unet = model.family.parts["unet"].module
    theirs = load_tiny(tmp_path / "turbo").unet.state_dict()
    assert model.sampled is not None
    with model.placement.phase("sample_denoise"), model.sampled.active():
        now = {n.replace(".base_layer", ""): p.detach() for n, p in unet.named_parameters() if "lora_" not in n}
        assert_equal_tensors({n: theirs[n] for n in now}, now)
    model.placement.close()
    assert distance(images_of(on_other)[:1], images_of(plain)[:1]) > 8
