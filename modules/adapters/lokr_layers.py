"""LoKr's layers: `h = W x + scale * kron(w1, w2) x`, added by a hook on each layer.

peft has LoKr, too, but builds the whole product in each pass (as large as all the layers' weights), has no full matrix
and no dropout of the inputs. The factors, their shapes and their initial values are the same as in LyCORIS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch import nn
from torch.nn import functional

from modules.adapters.changes import by_rank
from modules.adapters.delta_adapter import AdaptedLayer, DeltaKind, FactorDelta, with_matrices
from modules.adapters.kept_layers import apply_weight
from modules.adapters.layer_dropout import ModuleDropout, attach_module_dropout
from modules.adapters.lokr import LOKR, Lokr, factor_shapes
from modules.adapters.ranks import at_layer, is_convolution, ranks_of
from modules.formats.adapter_layers import AdapterLayer
from modules.formats.adapter_types import DORA_SCALE
from modules.system.devices import dtype_of


def as_in_lycoris(
    factors: Mapping[str, torch.Tensor], alpha: float | None, rank: float | None
) -> dict[str, torch.Tensor]:
    """Return factors of other programs as LyCORIS' files hold them, whose layers with two whole matrices use no alpha.

    PEFT scales these as well, by alpha and the rank in its settings: the strength is multiplied into the first matrix.
    """
    plain = with_matrices(factors, alpha, rank)
    is_whole = {"lokr_w1", "lokr_w2"} <= plain.keys()
    if not is_whole or alpha is None or rank is None or not math.isfinite(alpha):
        return plain
    return plain | {"lokr_w1": plain["lokr_w1"].float() * (alpha / rank)}


def product(factors: Mapping[str, torch.Tensor], alpha: float | None, weight: torch.Tensor) -> torch.Tensor:
    """Return the change of a weight (out, in, kernel) by the factors of a file, in float32."""
    in_float32 = {name: factor.float() for name, factor in factors.items()}
    first, second = (_side(in_float32, n, tuple(weight.shape[2:])) for n in (1, 2))
    first = first.reshape(*first.shape[:2], *(1 for _ in second.shape[2:]))
    return by_rank(torch.kron(first, second.contiguous()), alpha, rank_in(in_float32), weight)


def _side(factors: Mapping[str, torch.Tensor], number: int, kernel: Sequence[int]) -> torch.Tensor:
    name = f"lokr_w{number}"
    core = factors.get("lokr_t2") if number == 2 else None
    if name in factors:
        whole = factors[name]
    elif core is not None:
        whole = torch.einsum("ijkl,ip,jr->prkl", core, factors[f"{name}_a"], factors[f"{name}_b"])
    else:
        whole = factors[f"{name}_a"] @ factors[f"{name}_b"]
    return whole.reshape(whole.shape[0], -1, *kernel) if number == 2 else whole


class KroneckerDelta(FactorDelta):
    """LoKr's change of one linear or convolution layer. `factors` are named as in LyCORIS files."""

    last = ("lokr_w2", "lokr_w2_b")

    def __init__(
        self,
        kernel: Sequence[int],
        factors: Mapping[str, torch.Tensor],
        *,
        alpha: float,
        dropout: float,
        vec_trick: bool,
        rank_dropout: float = 0.0,
        module_dropout: ModuleDropout | None = None,
    ) -> None:
        super().__init__(
            factors, alpha=alpha, dropout=dropout, rank_dropout=rank_dropout, module_dropout=module_dropout
        )
        self._kernel = tuple(kernel)
        self._vec_trick = vec_trick

    @staticmethod
    def scale_of(factors: Mapping[str, torch.Tensor], alpha: float | None) -> float:
        """Return alpha by rank; 1 for two full matrices, and if no alpha is given."""
        rank = rank_in(factors)
        return 1.0 if rank is None or alpha is None else alpha / rank

    def in_file_form(self, values: Mapping[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], float | None]:
        """Return the factors and alpha as files hold them: Tucker's core is multiplied into w2_b, of the same rank.

        ComfyUI skips layers with such a core; Forge and the loader of LyCORIS fail on them.
        """
        in_file = dict(values)
        if "lokr_t2" in in_file:
            core, a, b = (in_file.pop(name).float() for name in ("lokr_t2", "lokr_w2_a", "lokr_w2_b"))
            in_file["lokr_w2_a"] = a.T.contiguous()
            in_file["lokr_w2_b"] = torch.einsum("ijkl,jr->irkl", core, b).flatten(1).contiguous()
        return in_file, self.alpha

    def first(self) -> torch.Tensor:
        """Return w1, scaled, of shape (rows, columns)."""
        parameters = cast(Mapping[str, nn.Parameter], self._parameters)
        whole = parameters.get("lokr_w1")
        return (parameters["lokr_w1_a"] @ parameters["lokr_w1_b"] if whole is None else whole) * self.scale

    def second(self) -> torch.Tensor:
        """Return w2, of shape (rows, columns, kernel)."""
        parameters = cast(Mapping[str, nn.Parameter], self._parameters)
        whole, core = parameters.get("lokr_w2"), parameters.get("lokr_t2")
        if whole is not None:
            return whole.reshape(*whole.shape[:2], *self._kernel)
        a, b = parameters["lokr_w2_a"], parameters["lokr_w2_b"]
        if core is not None:
            return torch.einsum("ijkl,ip,jr->prkl", core, a, b)
        return (a @ b).reshape(a.shape[0], -1, *self._kernel)

    def weight(self) -> torch.Tensor:
        """Return the change of the layer's weight, of shape (out, in, kernel)."""
        first, second = self.first(), self.second()
        return torch.kron(first.reshape(*first.shape, *(1 for _ in self._kernel)), second.contiguous())

    def forward(self, layer: AdaptedLayer, x: torch.Tensor) -> torch.Tensor:
        """Return the change of the layer's output."""
        x = self.cast_input(x)
        if not self._vec_trick:
            return apply_weight(layer, x, self.weight())
        if isinstance(layer, nn.Conv2d):
            return self._convolve(layer, x)
        first, second = self.first(), self.second()
        blocks = functional.linear(x.unflatten(-1, (first.shape[1], second.shape[1])), second)
        return functional.linear(blocks.transpose(-1, -2), first).transpose(-1, -2).flatten(-2)

    def _convolve(self, layer: nn.Conv2d, x_BCHW: torch.Tensor) -> torch.Tensor:
        first, second = self.first(), self.second()
        batch, num_blocks = x_BCHW.shape[0], first.shape[1]
        blocks = x_BCHW.reshape(batch * num_blocks, second.shape[1], *x_BCHW.shape[2:])
        blocks = functional.conv2d(blocks, second, None, layer.stride, layer.padding, layer.dilation)
        height, width = blocks.shape[2:]
        mixed = functional.conv2d(blocks.reshape(batch, num_blocks, -1, width), first[:, :, None, None])
        return mixed.reshape(batch, -1, height, width)


def rank_in(factors: Mapping[str, torch.Tensor]) -> int | None:
    """Return the rank of the low-rank factors; None if both matrices are full."""
    return next((int(factors[name].shape[0]) for name in ("lokr_w1_b", "lokr_w2_b") if name in factors), None)


def _begin_delta(
    layer: AdaptedLayer, part: str, path: str, settings: Lokr, stored: AdapterLayer | None
) -> KroneckerDelta:
    """Return a LoKr for a layer, not yet on it: fresh, or with the shapes of a file."""
    weight = tuple(layer.weight.shape)
    if stored is not None:
        names = [name for name in stored.factors if name != DORA_SCALE]
        factors = {name: torch.empty(stored.factors[name].shape) for name in names}
    else:
        shapes = factor_shapes(at_layer(settings, part, path, weight), weight)
        factors = {name: _init_factor(name, torch.empty(shape)) for name, shape in shapes.items()}
    # Two full matrices have no rank and a strength of 1: LyCORIS writes an alpha of the rank for them.
    rank, ranks, is_conv = rank_in(factors), ranks_of(settings), is_convolution(weight)
    full = float(ranks.of(part, path, is_convolution=is_conv)[0])
    return KroneckerDelta(
        weight[2:],
        {name: factor.to(layer.weight.device, dtype_of(settings.dtype)) for name, factor in factors.items()},
        alpha=ranks.alpha_at(part, path, rank, is_convolution=is_conv) if rank else full,
        dropout=settings.dropout,
        vec_trick=settings.vec_trick,
        rank_dropout=settings.rank_dropout,
        module_dropout=attach_module_dropout(layer, settings.module_dropout),
    )


def _init_factor(name: str, factor: torch.Tensor) -> torch.Tensor:
    """Initialize a factor as LyCORIS does: the last one of w2 is zero, so that the model is unchanged at first."""
    if name in ("lokr_w2", "lokr_w2_b"):
        return nn.init.zeros_(factor)
    return nn.init.kaiming_uniform_(factor, a=math.sqrt(5))


LOKR_KIND = DeltaKind(LOKR.label, "lokr", _begin_delta)
