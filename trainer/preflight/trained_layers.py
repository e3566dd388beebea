"""The trained layers and weights of each part, and layer names that match nothing."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from modules.config.schema import Config
from modules.estimate.passes import Passes, Plans, count
from modules.memory.part_plan import PartPlan
from modules.settings.layer_filter import EXAMPLES
from modules.system.problem import Problem
from modules.system.problem import count as count_of
from trainer.preflight.start_from import trained_layers

_KINDS: Mapping[str, tuple[str, ...]] = {  # the first with a part of the name
    "normalization": ("norm",),
    "timestep embedding": ("time_emb", "add_embedding", "t_embedder"),
    "self-attention": ("attn1.", "self_attn.", "mid_block.attentions.0.to_"),  # the last in a VAE
    "cross-attention": ("attn2.",),
    "attention": (".attention.", ".attn."),
    "feed-forward": (".ff.", ".mlp.", ".feed_forward."),
    "modulation": ("adaLN_modulation",),
    "projection": ("proj_in", "proj_out", "text_projection"),
    "convolution": ("conv", "downsamplers", "upsamplers"),
    "embedding": ("embedding", "embedder"),
}


@dataclass(frozen=True, slots=True)
class TrainedPart:
    """The layers of a part that are trained, or that get an adapter, and the number of trained weights."""

    label: str
    layers: tuple[str, ...]
    num_weights: int

    def __str__(self) -> str:
        """Return it as a sentence, with the number of layers of each kind."""
        kinds = Counter(map(kind_of_layer, self.layers))
        named = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
        return (
            f"Trains {count_of(len(self.layers), 'layer')} of {self.label} with {_in_millions(self.num_weights)}: "
            f"{named}."
        )


def kind_of_layer(name: str) -> str:
    """Return the kind of a layer in a user's words, by its path in diffusers or transformers."""
    return next((kind for kind, parts in _KINDS.items() if any(part in name for part in parts)), "other")


def parts_trained(config: Config, passes: Passes, plans: Plans) -> Iterator[TrainedPart]:
    """Yield the trained layers of each part that a run trains."""
    labels = config.family.part_labels
    for name, plan in plans.items():
        if plan.trains == "nothing":
            continue
        weights = passes.weights(name, plan)
        trained = trained_layers(passes, plans, name)
        layers = [
            path for path in _paths(weights.shapes) if (path in trained if plan.adapter else plan.is_trained(path))
        ]
        if layers:
            yield TrainedPart(labels[name], tuple(layers), count(weights.trained_shapes(plan)))


def idle_layer_names(passes: Passes, plans: Plans) -> Iterator[Problem]:
    """Yield an error for each entry of a layer filter that matches no layer of the denoiser, such as a misspelt one."""
    for name, plan in plans.items():
        if plan.trains == "nothing" or passes.role_of(name) != "denoiser":
            continue
        layer_filter = plan.layers if plan.adapter is None else plan.adapter.layers
        path = "training.layer_filter_names" if plan.adapter is None else "adapter.custom_layers"
        for entry in layer_filter.idle_entries(_candidates(passes, name, plan)):
            yield Problem(
                path,
                f"No layer's name {'matches' if layer_filter.is_regex else 'contains'} {entry!r}.",
                advice=f"Correct it, as in {EXAMPLES}, or leave it out.",
            )


def of_all_ranks(plans: Plans) -> Plans:
    """Return plans whose adapters are also on the layers that are left out by a rank of 0."""
    return {
        name: plan if plan.adapter is None else replace(plan, adapter=replace(plan.adapter, has_rank=None))
        for name, plan in plans.items()
    }


def _candidates(passes: Passes, name: str, plan: PartPlan) -> Sequence[str]:
    """Return the layers that a filter chooses from."""
    if plan.adapter is None:
        return _paths(passes.weights(name, plan).shapes)
    return [path for path in passes.layers(name) if not path.startswith(plan.unreached)]


def _paths(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[0] for name in names))


def _in_millions(number: int) -> str:
    if number < 1_000_000:
        return f"{number:,} weights"
    digits = max(0, 2 - int(math.log10(number / 1e6)))
    return f"{number / 1e6:,.{digits}f} million weights"
