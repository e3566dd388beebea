"""Extracting a LoRA from two models: the difference of their weights, reduced by SVD to a rank."""

from __future__ import annotations

import torch

from modules.adapters.tools.low_rank import RankChoice, Reduction, reduce_matrix
from modules.adapters.tools.results import LoraResult, Losses, OnLayer
from modules.families.kinds.conversion import Source
from modules.families.registry import FAMILIES, published_model
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_targets import AdapterTarget
from modules.system.errors import DarkroomError
from modules.system.problem import count


def extract_difference(
    base: Source, tuned: Source, choice: RankChoice, on_layer: OnLayer, *, with_text_encoders: bool = True
) -> LoraResult:
    """Return the LoRA that turns an opened model into another one, of the ranks of a choice.

    Linear layers and convolutions that differ get a LoRA. Norms and biases that differ are counted: a LoRA cannot hold
    them. Raises DarkroomError for models of different sizes, and for equal ones.
    """
    for source in (base, tuned):
        if not source.kind.is_model:
            raise source.kind.refusal(
                f"{source.path.name} is not a whole model.", "Choose a model file or a diffusers folder."
            )
    targets = _targets(base, tuned, with_text_encoders=with_text_encoders)
    layers: list[AdapterLayer] = []
    reduced: dict[str, Reduction] = {}
    lost = 0
    for done, target in enumerate(targets):
        on_layer(done, len(targets))
        difference = _difference(base, tuned, target, f"{target.path}.weight")
        if f"{target.path}.bias" in base.states[target.part]:
            lost += bool(_difference(base, tuned, target, f"{target.path}.bias").any())
        if not difference.any():
            continue
        if target.is_norm:
            lost += 1
            continue
        reduction = reduce_matrix(difference, choice)
        reduced[f"{target.part}.{target.path}"] = reduction
        layers.append(reduction.change.as_layer(target.part, target.path))
    on_layer(len(targets), len(targets))
    if not layers:
        raise DarkroomError(
            f"{tuned.path.name} and {base.path.name} have the same weights, so there is nothing to extract.",
            advice="Choose a model and the base model that it was trained from.",
        )
    notes = [f"{count(lost, 'bias or norm differs', 'biases or norms differ')}, which a LoRA cannot hold."] * bool(lost)
    return LoraResult(tuple(layers), {}, (Losses.of(reduced).sentence, *notes))


def _targets(base: Source, tuned: Source, *, with_text_encoders: bool) -> list[AdapterTarget]:
    """Return the layers that a LoRA can change. Raises DarkroomError for models of different kinds or sizes."""
    if base.kind.family != tuned.kind.family:
        raise DarkroomError(
            f"The models are of different kinds. {base.path.name}: {base.kind.sentence} {tuned.path.name}: "
            f"{tuned.kind.sentence}",
            advice="Choose a model and the base model that it was trained from.",
        )
    spec = FAMILIES[base.kind.family]
    left_out = () if with_text_encoders else spec.names_of("text_encoder")
    every = published_model(base.kind.model).adapter_targets(base.configs).all
    return [t for t in every if t.part not in left_out and f"{t.path}.weight" in base.states.get(t.part, {})]


def _difference(base: Source, tuned: Source, target: AdapterTarget, name: str) -> torch.Tensor:
    base_tensor, tuned_tensor = base.states[target.part][name], tuned.states.get(target.part, {}).get(name)
    if tuned_tensor is None or tuned_tensor.shape != base_tensor.shape:
        there = "nothing" if tuned_tensor is None else str(tuple(tuned_tensor.shape))
        raise DarkroomError(
            f"The models differ in size: {target.part}.{name} is {tuple(base_tensor.shape)} in {base.path.name}, and "
            f"{there} in {tuned.path.name}.",
            advice="Choose the base model that the other one was trained from; an inpainting model needs an "
            "inpainting one.",
        )
    return tuned_tensor.make().float() - base_tensor.make().float()
