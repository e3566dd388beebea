"""The checkpointed forward: exact gradients in every mode, and the ways it failed elsewhere."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import CheckpointError

from modules.adapters.loha import Loha
from modules.adapters.lokr import Lokr
from modules.adapters.lora import Lora
from modules.adapters.lora_layers import LoraAdapter, LoraShape, attach_lora
from modules.adapters.oft import Oft
from modules.adapters.protocol import kind_of, target_layers
from modules.adapters.registry import ADAPTERS
from modules.data.buckets import Size
from modules.data.conditioning import Conditioning, SizeConditioning
from modules.families.protocol import FamilyThatSees, ModelFamily, PartMemory
from modules.memory import checkpointing
from modules.memory.checkpointing import create_checkpointed_forward
from modules.memory.guard import DeviceGuard
from modules.memory.placement import Placement
from modules.settings.layer_filter import EVERYTHING
from modules.system.devices import CPU, Device, move
from tests.builders.editing_models import EDITING_MODELS, variant_of
from tests.builders.flow_models import FLOW_MODELS, VARIANTS, flow_model
from tests.builders.matrix import full_cover, matrix
from tests.builders.pipelines import load_tiny

TEMP = Device("cpu:1")
FRAME = SizeConditioning(Size(100, 80), 3, 0, Size(64, 64))

Parameters = dict[str, torch.nn.Parameter]
Gradients = dict[str, torch.Tensor | None]
Loss = Callable[[ModelFamily], torch.Tensor]


def trained_parts(family: ModelFamily) -> list[str]:
    return [n for n, p in family.parts.items() if p.spec.trainable]


def conditioning_of(family: ModelFamily, prompts: list[str]) -> Conditioning:
    if family.spec.seen_with_captions is not None:
        side = torch.linspace(-1.0, 1.0, 56)
        return cast(FamilyThatSees, family).encode_with_images(prompts, [(side[:, None] * side).expand(3, -1, -1)])
    return family.with_size_conditioning(family.encode_prompts(prompts), [FRAME] * len(prompts))


def references_for(family: ModelFamily, *, batch: int) -> dict[str, torch.Tensor]:
    """The latents of up to two reference images of an editing model."""
    names = family.spec.inputs.get(family.variant, ())[:2]
    return {name: move(noise_of(family, batch=batch, seed=20 + i), CPU) for i, name in enumerate(names)}


def with_lora(model: Path, *, dropout: float = 0.0) -> tuple[ModelFamily, list[LoraAdapter]]:
    family: ModelFamily = load_tiny(model, variant=variant_of(model))
    adapters = []
    generator = torch.Generator().manual_seed(1)
    for name in trained_parts(family):
        part = family.parts[name]
        targets = target_layers(part.module, part.spec.role, layers=EVERYTHING, reaches=part.reaches)
        adapter = attach_lora(name, part.module, targets, LoraShape(2, 2.0, dropout, torch.float32), seed=3)
        for key, parameter in adapter.parameters().items():
            if "lora_B" in key:  # zero at first, which would hide A's gradient
                parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
        part.module.train()
        adapters.append(adapter)
    return family, adapters


ADAPTERS_OF_ALL_KINDS = {
    "lora of all kinds": Lora(rank=2, init="pissa", decompose=True, dropout=0.2, rank_dropout=0.3, module_dropout=0.3),
    "lokr with dropout": Lokr(rank=1, dropout=0.3, use_tucker=True),
    "loha with dropout": Loha(rank=1, dropout=0.3, module_dropout=0.2, use_tucker=True),
    "oft with dropout": Oft(block_size=4, dropout=0.3, rescale=True),
    "oft of inputs": Oft(block_size=4, rotates="inputs", module_dropout=0.2),
}


def with_adapter(model: Path, settings: Lora | Lokr | Loha | Oft) -> tuple[ModelFamily, Parameters]:
    """A family with an adapter that does something: no weight of it is zero."""
    family: ModelFamily = load_tiny(model, variant=variant_of(model))
    generator = torch.Generator().manual_seed(1)
    kind = kind_of(ADAPTERS[settings.name])
    parameters: Parameters = {}
    for name in trained_parts(family):
        part = family.parts[name]
        targets = target_layers(part.module, part.spec.role, layers=EVERYTHING, reaches=part.reaches)
        parameters |= kind.attach(name, part.module, targets, settings, seed=3).parameters()
        part.module.train()
    for parameter in parameters.values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.05
    return family, parameters


@functools.cache
def trained(model: Path, kind: str) -> tuple[ModelFamily, Parameters]:
    """A family with what is trained of it; loaded once, as nothing here moves a weight."""
    if settings := ADAPTERS_OF_ALL_KINDS.get(kind):
        return with_adapter(model, settings)
    if kind.startswith("lora"):
        family, adapters = with_lora(model, dropout=0.3 if "dropout" in kind else 0.0)
        return family, {n: p for a in adapters for n, p in a.parameters().items()}
    family = load_tiny(model, variant=variant_of(model))
    parameters = {
        f"{name}.{n}": p
        for name in trained_parts(family)
        for n, p in family.parts[name].module.named_parameters()
        if family.parts[name].reaches(n) and (kind == "full" or n.endswith(VOCABULARIES))
    }
    for name in trained_parts(family):
        family.parts[name].module.requires_grad_(False)
    for parameter in parameters.values():
        parameter.requires_grad_(True)
    return family, parameters


VOCABULARIES = ("token_embedding.weight", "shared.weight")


def noise_of(family: ModelFamily, *, batch: int, seed: int) -> torch.Tensor:
    return torch.randn(batch, family.spec.latents.channels, 8, 8, generator=torch.Generator().manual_seed(seed))


def predicted(family: ModelFamily, *, dtype: torch.dtype | None = None) -> torch.Tensor:
    noisy = noise_of(family, batch=2, seed=7)
    with torch.autocast("cpu", dtype=dtype) if dtype else nullcontext():
        conditioning = conditioning_of(family, ["a red disc", "a cat"])
        references = references_for(family, batch=2)
        output = family.predict(move(noisy, CPU), move(torch.tensor([10, 700]), CPU), conditioning, references)
    return output.float().square().mean()


def chained(family: ModelFamily) -> torch.Tensor:
    """A denoising loop with gradients in the last two of three steps, as in reward-gradient methods."""
    latents = noise_of(family, batch=1, seed=8)
    conditioning = conditioning_of(family, ["a cat"])
    for step, timestep in enumerate((900, 500, 100)):
        with torch.no_grad() if step == 0 else nullcontext():
            latents = latents - 0.3 * family.predict(latents, torch.tensor([timestep]), conditioning)
    return latents.square().mean()


def with_a_reference(family: ModelFamily, adapters: list[LoraAdapter]) -> torch.Tensor:
    """Online preference training as in trl#2671: a rollout, the adapters off and on again, then a prediction."""
    noisy, timesteps = noise_of(family, batch=1, seed=9), torch.tensor([400])
    with torch.no_grad():
        rollout = family.predict(noisy, timesteps, conditioning_of(family, ["a cat"]))
    learning = family.predict(noisy, timesteps, conditioning_of(family, ["a cat"]))
    reference = reference_of(family, adapters, lambda: family.predict(noisy, timesteps, conditioning_of(family, ["a"])))
    assert not torch.equal(rollout, reference)
    return (learning - reference).square().mean()


def reference_of(family: ModelFamily, adapters: list[LoraAdapter], predict: Callable[[], torch.Tensor]) -> torch.Tensor:
    first, *rest = adapters
    with first.disabled():
        return reference_of(family, rest, predict) if rest else predict()


def gradients(
    family: ModelFamily, parameters: Parameters, memory: PartMemory, *, loss: Loss = predicted, guarded: bool = False
) -> Gradients:
    """What a loss gives each parameter; guarded, with a offload device of its own, as on a GPU."""
    family.set_memory(dict.fromkeys(trained_parts(family), memory), train_device=CPU, temp_device=TEMP)
    for parameter in parameters.values():
        parameter.grad = None
    torch.manual_seed(0)  # for dropout
    guard = DeviceGuard() if guarded else None
    with guard or nullcontext():
        placement = Placement(
            {n: p.module for n, p in family.parts.items()},
            train_device=CPU,
            temp_device=TEMP,
            needed_in=lambda phase: frozenset(family.parts),
            guard=guard,
        )
        placement.enter("train")
        try:
            loss(family).backward()
        finally:
            placement.close()
    return {name: p.grad for name, p in parameters.items()}


def assert_equal_gradients(one: Gradients, other: Gradients) -> None:
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] is not None, f"{name} is reached by no gradient"
        assert torch.equal(one[name], other[name]), name


@functools.cache
def plain_gradients(model: Path, kind: str, loss: Loss) -> Gradients:
    family, parameters = trained(model, kind)
    return gradients(family, parameters, PartMemory(), loss=loss)


def memory_of(mode: str, saves: str, resident: frozenset[str] = frozenset()) -> PartMemory:
    return PartMemory(
        mode,
        offload_activations="activations" in saves,
        offload_fraction=0.5 if "layers" in saves and mode != "selective" else 0.0,  # a rule refuses both together
        resident=resident,
    )


DROPOUTS: dict[str, Lora | Lokr | Loha | Oft] = {
    "lora": Lora(rank=2, dropout=0.2),
    "lora, ranks": Lora(rank=2, rank_dropout=0.2),
    "lora, modules": Lora(rank=2, module_dropout=0.2),
    "lokr": Lokr(rank=1, dropout=0.2),
    "lokr, ranks": Lokr(rank=1, rank_dropout=0.2),
    "loha, modules": Loha(rank=1, module_dropout=0.2),
    "oft": Oft(block_size=4, dropout=0.2),
    "oft, modules": Oft(block_size=4, module_dropout=0.2),
    "none": Lora(rank=2),
}


@pytest.mark.parametrize("kind", DROPOUTS)
def test_the_generators_are_kept_for_blocks_that_draw_from_them(
    tiny_sd: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Only for them, and only while their adapter is in training mode: it may be frozen in mid-run."""
    family, _ = with_adapter(tiny_sd, DROPOUTS[kind])
    family.set_memory({"unet": PartMemory("block")}, train_device=CPU, temp_device=CPU)
    keeps: list[bool] = []
    plain = checkpointing.checkpoint

    def noted(*args: Any, preserve_rng_state: bool, **options: Any) -> Any:
        keeps.append(preserve_rng_state)
        return plain(*args, preserve_rng_state=preserve_rng_state, **options)

    monkeypatch.setattr(checkpointing, "checkpoint", noted)
    for is_training in (True, False):
        keeps.clear()
        family.parts["unet"].module.train(is_training)
        noisy, timesteps, conditioning = (
            noise_of(family, batch=1, seed=7),
            torch.tensor([10]),
            conditioning_of(family, ["a"]),
        )
        before = torch.get_rng_state()
        family.predict(move(noisy, CPU), move(timesteps, CPU), conditioning)
        assert torch.equal(before, torch.get_rng_state()) == (kind == "none" or not is_training)
        assert keeps
        assert (True in keeps) == (kind != "none" and is_training)


MODELS = ["tiny_sd", "tiny_sdxl", *FLOW_MODELS]
KINDS = ["full", "lora", "lora with dropout", *ADAPTERS_OF_ALL_KINDS, "embedding"]
MODES = ["off", "selective", "transformer", "block", "whole"]
SAVES = ["nothing more", "activations", "layers"]


def takes_embeddings(model: str) -> bool:
    return bool(flow_model(model).spec.text.embedding_tensors)


@pytest.mark.daily(8)
@pytest.mark.parametrize(
    ("model", "kind", "mode", "saves"),
    [
        *matrix(
            MODELS, KINDS, MODES, SAVES,
            possible=lambda model, kind, *_: kind != "embedding" or model not in FLOW_MODELS or takes_embeddings(model),
        ),
        *full_cover(list(EDITING_MODELS), KINDS[:-1], MODES, SAVES),
    ],
    ids=str,
)  # fmt: skip
def test_gradients_equal_the_plain_ones_bit_for_bit(
    request: pytest.FixtureRequest, model: str, kind: str, mode: str, saves: str
) -> None:
    """Every parameter that the family declares reachable; offloading too, as a copy is lossless."""
    folder = request.getfixturevalue(model)
    family, parameters = trained(folder, kind)
    resident = frozenset(n.partition(".")[2] for n in parameters) if kind.startswith(("lo", "oft")) else frozenset()
    saved = gradients(family, parameters, memory_of(mode, saves, resident), guarded=saves != "nothing more")
    assert_equal_gradients(plain_gradients(folder, kind, predicted), saved)


@pytest.mark.daily(5)
@pytest.mark.parametrize(
    ("kind", "mode", "saves"), matrix(["full", "lora", "embedding"], MODES, ["nothing more", "activations, layers"])
)
def test_gradients_of_a_truncated_denoising_chain_are_the_plain_ones(
    tiny_sd: Path, kind: str, mode: str, saves: str
) -> None:
    family, parameters = trained(tiny_sd, kind)
    saved = gradients(family, parameters, memory_of(mode, saves), loss=chained)
    assert_equal_gradients(plain_gradients(tiny_sd, kind, chained), saved)


in_bfloat16 = functools.partial(predicted, dtype=torch.bfloat16)


@pytest.mark.daily(7)
@pytest.mark.parametrize(
    ("model", "kind", "mode", "saves"),
    [
        *matrix(MODELS, ["full", "lora"], MODES, SAVES),
        *full_cover(list(EDITING_MODELS), ["full", "lora"], MODES, SAVES),
    ],
)
def test_gradients_inside_autocast_are_the_plain_ones(
    request: pytest.FixtureRequest, model: str, kind: str, mode: str, saves: str
) -> None:
    folder = request.getfixturevalue(model)
    family, parameters = trained(folder, kind)
    saved = gradients(family, parameters, memory_of(mode, saves), loss=in_bfloat16, guarded=saves == "layers")
    assert_equal_gradients(plain_gradients(folder, kind, in_bfloat16), saved)


@pytest.mark.daily(5)
@pytest.mark.parametrize(("mode", "saves"), matrix(MODES, SAVES))
def test_where_nothing_inside_learns_the_input_may(tiny_sd: Path, mode: str, saves: str) -> None:
    family: ModelFamily = load_tiny(tiny_sd)
    for part in family.parts.values():
        part.module.requires_grad_(False)

    def of_input(memory: PartMemory) -> torch.Tensor:
        family.set_memory(dict.fromkeys(trained_parts(family), memory), train_device=CPU, temp_device=TEMP)
        noisy = torch.ones(1, 4, 8, 8)
        conditioning = conditioning_of(family, ["a cat"])
        assert not family.predict(noisy, torch.tensor([10]), conditioning).requires_grad
        noisy.requires_grad_()
        family.predict(noisy, torch.tensor([10]), conditioning).square().mean().backward()
        assert noisy.grad is not None
        return noisy.grad

    assert torch.equal(of_input(PartMemory()), of_input(memory_of(mode, saves)))


@pytest.mark.daily(5)
@pytest.mark.parametrize(("mode", "saves"), matrix(MODES, SAVES))
def test_a_gradient_through_the_decoder_is_the_plain_one(tiny_sd: Path, mode: str, saves: str) -> None:
    """As for a reward on images; the VAE is called through its decoder and is not trained."""
    family: ModelFamily = load_tiny(tiny_sd)
    family.parts["vae"].module.requires_grad_(False)
    runs: list[str] = []
    decoder = family.parts["vae"].module.decoder
    decoder.register_forward_pre_hook(lambda *_: runs.append("the decoder"))

    def of_latents(memory: PartMemory) -> torch.Tensor:
        family.set_memory({"vae": memory}, train_device=CPU, temp_device=TEMP)
        latents = torch.randn(1, 4, 4, 4, generator=torch.Generator().manual_seed(3)).requires_grad_()
        family.decode(latents).square().mean().backward()
        assert latents.grad is not None
        return latents.grad

    plain = of_latents(PartMemory())
    assert torch.equal(plain, of_latents(memory_of(mode, saves)))
    assert len(runs) - 1 == (2 if mode == "whole" else 1)
    assert torch.equal(plain, of_latents(PartMemory()))


@pytest.mark.parametrize(("mode", "saves"), matrix(MODES, SAVES))
def test_without_gradients_nothing_is_computed_twice_or_sent_away(tiny_sd: Path, mode: str, saves: str) -> None:
    family, _ = trained(tiny_sd, "full")
    calls: list[str] = []
    blocks = [m for m in family.parts["unet"].module.modules() if type(m).__name__ == "ResnetBlock2D"]
    hooks = [b.register_forward_hook(lambda *_: calls.append("a block")) for b in blocks]
    outputs = []
    for memory in (PartMemory(), memory_of(mode, saves)):
        family.set_memory(dict.fromkeys(trained_parts(family), memory), train_device=CPU, temp_device=TEMP)
        with torch.no_grad():
            outputs.append(predicted(family))
    for hook in hooks:
        hook.remove()
    assert torch.equal(*outputs)
    assert len(calls) == 2 * len(blocks)


@pytest.mark.parametrize("mode", ["block", "whole"])
def test_freezing_a_part_during_a_run(any_model: Path, mode: str) -> None:
    """OneTrainer#549: all of the text encoder frozen, its layers still checkpointed."""
    family, [unet, *texts] = with_lora(any_model)
    frozen = {n: p for text in texts for n, p in text.parameters().items()}
    for parameter in frozen.values():
        parameter.requires_grad_(False)
    result = gradients(family, unet.parameters() | frozen, PartMemory(mode))
    assert all(result[n] is None for n in frozen)
    assert all(result[n] is not None and result[n].abs().sum() > 0 for n in unet.parameters())


def lora_adapters(family: ModelFamily) -> list[LoraAdapter]:
    shape = LoraShape(2, 2.0, 0.0, torch.float32)
    return [LoraAdapter(name, family.parts[name].module, shape) for name in trained_parts(family)]


def preferred(family: ModelFamily) -> torch.Tensor:
    return with_a_reference(family, lora_adapters(family))


@pytest.mark.daily(7)
@pytest.mark.parametrize(
    ("model", "mode", "saves"), [*matrix(MODELS, MODES, SAVES), *full_cover(list(VARIANTS), MODES, SAVES)]
)
def test_online_preference_training_gives_every_lora_parameter_its_gradient(
    request: pytest.FixtureRequest, model: str, mode: str, saves: str
) -> None:
    """trl#2671: it trained nothing, and only warned."""
    folder = request.getfixturevalue(model)
    family, parameters = trained(folder, "lora")
    saved = gradients(family, parameters, memory_of(mode, saves), loss=preferred)
    assert_equal_gradients(plain_gradients(folder, "lora", preferred), saved)
    for name, gradient in saved.items():
        assert gradient is not None, name
        assert gradient.abs().sum() > 0, name


def after_a_failed_reference(family: ModelFamily) -> torch.Tensor:
    loss = predicted(family)

    def fail() -> torch.Tensor:
        raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        reference_of(family, lora_adapters(family), fail)
    return loss


@pytest.mark.parametrize("mode", ["off", "block"])
def test_adapters_are_back_for_the_backward_pass_also_after_an_exception(tiny_sd: Path, mode: str) -> None:
    """A recomputation without them would end as CheckpointError, a plain backward as zero gradients, silently."""
    family, parameters = trained(tiny_sd, "lora")
    plain = plain_gradients(tiny_sd, "lora", predicted)
    assert_equal_gradients(plain, gradients(family, parameters, PartMemory(mode), loss=after_a_failed_reference))


def test_the_temp_device_may_not_be_left_out(tiny_sd: Path) -> None:
    """OneTrainer#467, #470: two of three arguments, found out at step 31. Here: when the run is built."""
    family: ModelFamily = load_tiny(tiny_sd)
    with pytest.raises(TypeError, match="temp_device"):
        family.set_memory({}, train_device=CPU)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="temp_device"):
        create_checkpointed_forward(torch.nn.Linear(2, 2), train_device=CPU)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        create_checkpointed_forward(torch.nn.Linear(2, 2), CPU, CPU)  # type: ignore[misc]


def test_tensors_given_by_name_are_seen_where_torch_looks_for_the_devices_of_random_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A recomputation needs the random state for the same dropout; a text encoder gets keyword arguments only."""
    seen: list[torch.Tensor] = []
    plain = checkpointing.checkpoint

    def looking(function: Callable[..., torch.Tensor], *args: Any, **kwargs: Any) -> torch.Tensor:
        seen.extend(leaf for leaf in tree_leaves(args) if isinstance(leaf, torch.Tensor))
        return plain(function, *args, **kwargs)

    monkeypatch.setattr(checkpointing, "checkpoint", looking)
    value = torch.ones(2)
    run = create_checkpointed_forward(torch.nn.Linear(2, 2), train_device=CPU, temp_device=TEMP)
    run(input=value).sum().backward()
    assert len(seen) == 1
    assert seen[0] is value


class Wavering(torch.nn.Module):
    """Computes in another precision when a pass is computed again, from a given pass on."""

    def __init__(self, from_pass: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.calls, self.from_pass = 0, from_pass

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        is_other = self.calls % 2 == 0 and self.calls // 2 >= self.from_pass
        return (self.weight * (x.double() if is_other else x)).float().exp()


def test_torch_compares_the_first_passes_with_their_recomputation(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    plain = checkpointing.checkpoint

    def noted(*args: Any, **options: Any) -> Any:
        seen.append(options.get("determinism_check", "default"))
        return plain(*args, **options)

    monkeypatch.setattr(checkpointing, "checkpoint", noted)
    module = Wavering(from_pass=6)
    run = create_checkpointed_forward(module, train_device=CPU, temp_device=TEMP)
    for _ in range(5):
        run(torch.ones(2)).sum().backward()
    with pytest.raises(CheckpointError, match="different metadata"):
        run(torch.ones(2)).sum().backward()
    module.from_pass = 1000
    for _ in range(5):
        module.weight.grad = None
        run(torch.ones(2)).sum().backward()
        assert torch.equal(module.weight.grad, torch.ones(2).exp())  # type: ignore[arg-type]
    assert seen == ["default"] * 8 + ["none"] * 3


@pytest.fixture
def counting() -> Iterator[list[int]]:
    """Count saved tensors' bytes while the fixture's list is first in line."""
    sizes: list[int] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        yield sizes


def test_checkpointing_saves_what_it_is_for(tiny_sd: Path, counting: list[int]) -> None:
    family, adapters = with_lora(tiny_sd)
    parameters = {n: p for a in adapters for n, p in a.parameters().items()}
    kept = {}
    for mode in ("off", "transformer", "selective", "block", "whole"):
        counting.clear()
        family.set_memory(dict.fromkeys(trained_parts(family), PartMemory(mode)), train_device=CPU, temp_device=TEMP)
        output = family.predict(torch.randn(2, 4, 8, 8), torch.tensor([1, 2]), conditioning_of(family, ["a", "b"]))
        kept[mode] = sum(counting)
        output.square().mean().backward()
        assert all(p.grad is not None for p in parameters.values())
    assert kept["block"] < 0.7 * kept["off"]
    assert kept["block"] < kept["transformer"] < kept["off"]
    assert kept["whole"] < 0.2 * kept["off"]


class DropoutOnGpu(torch.nn.Dropout):
    """Drops values by numbers of another generator than the CPU's."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__(0.5)
        self.weight, self.generator = torch.nn.Parameter(torch.ones(64)), generator

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.weight * (torch.rand(64, generator=self.generator) < self.p)).sin() * x


def test_dropout_on_an_apple_gpu_drops_the_same_values_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's checkpointing does not restore the state of that GPU's generator."""
    generator = torch.Generator()
    monkeypatch.setattr(torch.mps, "get_rng_state", generator.get_state)
    monkeypatch.setattr(torch.mps, "set_rng_state", generator.set_state)
    module = DropoutOnGpu(generator)
    run = create_checkpointed_forward(module, train_device=Device("mps"), temp_device=CPU)
    for _ in range(2):  # with other numbers each time
        module.weight.grad = None
        kept = run(torch.ones(64)).detach() > 0
        before = generator.get_state()
        out = run(torch.ones(64))
        after = generator.get_state()
        out.sum().backward()
        assert torch.equal(module.weight.grad != 0, out.detach() > 0)  # type: ignore[arg-type]
        assert not torch.equal(out.detach() > 0, kept)
        assert torch.equal(generator.get_state(), after)
        assert not torch.equal(before, after)
