"""Weights sharded among the processes of a run: PyTorch's FSDP2 (`torch.distributed.fsdp.fully_shard`).

Each process keeps some rows of every weight. The whole weights of a block exist only while it is computed; its
gradients are summed and sharded again at the end of its backward pass (Zhao et al. 2023, "PyTorch FSDP"). What the rest
of the program trains are the process's own rows, as plain parameters that share their memory with FSDP's: optimizers,
master weights and EMA need not know that there are others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from modules.system.devices import Device


class ShardedModule:
    """A module whose weights are sharded among all processes, block by block."""

    def __init__(
        self, module: nn.Module, *, block_types: Sequence[type[nn.Module]], device: Device, num_processes: int
    ) -> None:
        """Shard the weights of a module in all processes and move them to a device, never all of them at once.

        The weights of each submodule of one of `block_types` are gathered together, and the rest at once.
        """
        self.module = module
        # The second one for what is offloaded.
        self._meshes = {kind: init_device_mesh(kind, (num_processes,)) for kind in dict.fromkeys((device.type, "cpu"))}
        mesh = self._meshes[device.type]
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False)
        blocks = [m for m in module.modules() if isinstance(m, tuple(block_types)) and m is not module]
        for part in (*blocks, module):
            part.to(device.torch)
            fully_shard(part, mesh=mesh, mp_policy=policy)
        self._parts = [m for m in module.modules() if isinstance(m, FSDPModule)]
        for part in self._parts:
            part.set_gradient_divide_factor(1.0)  # gradients are summed: losses have their share of the step already
            part.set_force_sum_reduction_for_comms(True)  # gloo has no other
            part.set_reduce_scatter_unused_params(True)
        self._shapes = {name: weight.shape for name, weight in module.named_parameters()}
        self.rows = {name: self._plain_rows(weight) for name, weight in module.named_parameters()}
        """The process's own rows of each weight, by name. Their gradients are the sums over all processes."""

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Hold the whole weights in each process within this context, so forward passes wait for no other process.

        All processes must enter it together.
        """
        for part in self._parts:
            part.set_reshard_after_forward(False, recurse=False)
            part.unshard()
        try:
            yield
        finally:
            for part in self._parts:
                part.reshard()
                part.set_reshard_after_forward(part is not self.module, recurse=False)

    def gather(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Return a whole tensor, sharded like a weight, from the rows of all processes, on their device.

        All processes must call it together.
        """
        shape = self._shapes[name]
        stride = torch.empty(shape, device="meta").stride()
        mesh = self._meshes[rows.device.type]
        sharded = DTensor.from_local(rows.detach(), mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)
        whole: torch.Tensor = sharded.full_tensor()
        return whole

    def is_like(self, name: str, shape: Sequence[int]) -> bool:
        """Return whether a whole tensor of this shape can be sharded like a weight."""
        return name in self._shapes and tuple(shape) == tuple(self._shapes[name])

    def rows_of(self, name: str, whole: torch.Tensor) -> torch.Tensor:
        """Return this process's rows of a whole tensor, sharded like a weight."""
        mesh = self._meshes["cpu"]
        chunks, index = whole.chunk(mesh.size()), mesh.get_local_rank()
        return chunks[index] if index < len(chunks) else whole[:0]

    def place_of(self, name: str) -> tuple[int, int]:
        """Return the index of this process's first row of a weight, and the number of rows of the whole weight."""
        mesh, num_rows = self._meshes["cpu"], self._shapes[name][0]
        return min(mesh.get_local_rank() * -(-num_rows // mesh.size()), num_rows), num_rows

    def _plain_rows(self, weight: nn.Parameter) -> nn.Parameter:
        """Return a plain parameter that shares the memory of a sharded weight and gets its gradients."""
        assert isinstance(weight.data, DTensor)
        with torch.no_grad():
            plain = nn.Parameter(weight.data.to_local(), requires_grad=weight.requires_grad)
        if not weight.requires_grad:
            return plain

        def take_gradient(sharded_weight: torch.Tensor) -> None:
            gradient, sharded_weight.grad = sharded_weight.grad, None
            if gradient is None or not plain.requires_grad:  # its training has stopped
                return
            with torch.no_grad():
                rows = gradient.to_local() if isinstance(gradient, DTensor) else gradient
                plain.grad = rows if plain.grad is None else plain.grad.add_(rows)

        weight.register_post_accumulate_grad_hook(take_gradient)
        return plain


def gathered_values(
    sharded: Mapping[str, ShardedModule], values: Mapping[str, torch.Tensor], *, keeps: bool
) -> dict[str, torch.Tensor]:
    """Return the whole weights of sharded parts on the CPU, by full name ("part.weight"), trained or not.

    `values` has this process's rows of the trained weights by the same names, and other tensors, whole, which are
    returned unchanged. The result is empty without `keeps`. All processes must call it together.
    """
    gathered = dict(values) if keeps else {}
    for part, module in sharded.items():
        for name, rows in module.rows.items():
            full_name = f"{part}.{name}"
            whole = module.gather(name, values.get(full_name, rows))
            if keeps:
                gathered[full_name] = whole.cpu()
    return gathered
