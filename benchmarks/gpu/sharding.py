"""Stage 10: a module that a single process shards, by NCCL on a GPU, computes the same as without sharding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial

import torch
from diffusers.models.attention import BasicTransformerBlock
from torch import distributed, nn

from benchmarks.gpu.models import device_of
from benchmarks.gpu.numerics import error
from benchmarks.gpu.stage import Case, Check, Finding, Request, at_most
from benchmarks.measure import median_seconds
from benchmarks.rows import Row
from modules.memory.sharding import ShardedModule
from modules.system.devices import Device

_ALLOWED = 1e-5
_NUM_BLOCKS = 3


def cases(request: Request) -> Sequence[Case]:
    """Return the case of the stage."""
    width, heads, tokens = (32, 2, 16) if request.is_tiny else (1280, 20, 1024)
    return (Case("one process", partial(_shard, device_of(request), width, heads, tokens)),)


def _shard(device: Device, width: int, heads: int, tokens: int, _seconds: float) -> Iterator[Finding]:
    torch.manual_seed(0)
    blocks = [BasicTransformerBlock(width, heads, width // heads) for _ in range(_NUM_BLOCKS)]
    plain = nn.Sequential(*blocks).to(device.torch)
    x = torch.randn(1, tokens, width, generator=torch.Generator().manual_seed(1)).to(device.torch)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    store = distributed.HashStore()  # type: ignore[attr-defined] # which torch documents
    distributed.init_process_group(backend, store=store, rank=0, world_size=1)
    try:
        sharded = ShardedModule(deepcopy(plain), block_types=(BasicTransformerBlock,), device=device, num_processes=1)
        outputs = []
        for module in (plain, sharded.module):
            out = module(x)
            out.square().sum().backward()
            outputs.append(out.detach())
        yield at_most("error of the output", error(outputs[1], outputs[0]), _ALLOWED)
        gradients = {name: rows.grad for name, rows in sharded.rows.items()}
        lacking = [name for name, gradient in gradients.items() if gradient is None]
        yield Check("weights without a gradient", f"{len(lacking)}", "0", not lacking)
        whole = {name: p.grad for name, p in plain.named_parameters() if p.grad is not None}
        worst = max(error(g, whole[name]) for name, g in gradients.items() if g is not None)
        yield at_most("error of the gradients", worst, _ALLOWED)
        seconds = [median_seconds(partial(_step, module, x), device, rounds=5) for module in (plain, sharded.module)]
        words = f"{seconds[1] * 1000:.2f} ms, {seconds[0] * 1000:.2f} ms without sharding"
        yield Row("forward and backward", words, numbers={"plain": seconds[0], "sharded": seconds[1]})
    finally:
        distributed.destroy_process_group()


def _step(module: nn.Module, x: torch.Tensor) -> None:
    module(x).square().sum().backward()
