"""The attention implementations of the denoiser, one line each; the code is in `parts/attention_processor`.

The first one is diffusers' default: PyTorch's `scaled_dot_product_attention`, which chooses among its own kernels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modules.system.factories import Package


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """An attention implementation: its label, the name of its kernel ("module:name"), and where it runs.

    The kernel takes queries, keys and values (B, heads, tokens, channels) and returns (B, heads, tokens, channels).
    Without one nothing is replaced. `backend` is its name among diffusers' attention backends; without one, models that
    choose among these do not have it. `devices` are the types of devices that it can train on; `needs_16_bit`: on a GPU
    it only computes in 16 bits. `takes_mask`: it can leave tokens out, with correct gradients. `packages` are needed
    besides torch.
    """

    label: str
    kernel: str = ""
    backend: str = ""
    devices: tuple[str, ...] = ("cuda",)
    needs_16_bit: bool = False
    takes_mask: bool = True
    packages: tuple[Package, ...] = ()


_KERNELS = "modules.families.parts.attention_processor"
ATTENTIONS: Mapping[str, AttentionSpec] = {
    "sdpa": AttentionSpec("PyTorch's choice", devices=("cpu", "cuda", "mps")),
    "sdpa_flash": AttentionSpec(
        "PyTorch: flash",
        f"{_KERNELS}:sdpa_flash",
        "_native_flash",
        ("cpu", "cuda"),
        needs_16_bit=True,
        takes_mask=False,
    ),
    "sdpa_efficient": AttentionSpec("PyTorch: memory-efficient", f"{_KERNELS}:sdpa_efficient", "_native_efficient"),
    "sdpa_math": AttentionSpec("PyTorch: math", f"{_KERNELS}:sdpa_math", "_native_math", ("cpu", "cuda", "mps")),
    # With a mask its backward pass returns NaN for some numbers of tokens (pytorch/pytorch issue 196678).
    "cudnn": AttentionSpec(
        "PyTorch: cuDNN", f"{_KERNELS}:sdpa_cudnn", "_native_cudnn", needs_16_bit=True, takes_mask=False
    ),
    # diffusers' backend does not compile it: it would hold the matrix of all tokens by all tokens of each layer.
    "flex": AttentionSpec("PyTorch: Flex", f"{_KERNELS}:flex"),
    "flash": AttentionSpec(
        "Flash (flash-attn)",
        f"{_KERNELS}:flash",
        "flash",
        needs_16_bit=True,
        takes_mask=False,
        packages=(Package("flash_attn", is_offered=False),),
    ),
    # diffusers gives it a mask of true and false as the numbers 1 and 0, which are added: nothing would be left out.
    "xformers": AttentionSpec(
        "xFormers",
        f"{_KERNELS}:xformers",
        "xformers",
        takes_mask=False,
        packages=(Package("xformers", is_offered=False),),
    ),
}


def attention_labels() -> Mapping[str, str]:
    """Return the labels of the implementations by name."""
    return {name: spec.label for name, spec in ATTENTIONS.items()}


def usable_attentions(
    device: str, *, is_16_bit: bool, is_masked: bool = False, has_backends: bool = False
) -> list[str]:
    """Return the names of the implementations that train on a type of device and are installed.

    `is_16_bit` is whether the run computes in bfloat16 or float16, `is_masked` whether the model masks tokens, and
    `has_backends` whether it chooses among diffusers' backends.
    """
    return [
        name
        for name, spec in ATTENTIONS.items()
        if device in spec.devices
        and (is_16_bit or device != "cuda" or not spec.needs_16_bit)
        and (spec.takes_mask or not is_masked)
        and (spec.backend or not spec.kernel or not has_backends)
        and all(package.is_installed for package in spec.packages)
    ]
