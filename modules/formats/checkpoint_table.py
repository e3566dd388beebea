"""Which programs load which whole models in single files: facts about other programs (`program_table`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CheckpointFacts:
    """How a program reads single files.

    `reads_velocity_tensors`: it reads the empty tensors `v_pred` and `ztsnr` of SDXL. `reads_sidecar`: it reads the
    .yaml next to a file. `loads_other_sizes` is whether it loads a model with the widths of no published model (None:
    unknown), and `size_note` is the reason. `zero_snr_note` is the advice for a file with zero terminal SNR, but
    without a tensor that the program reads. `exceptions` are the variants and prediction types that it does not load
    (None: unknown) although it loads the model's files, each with the reason.
    """

    reads_velocity_tensors: bool = False
    reads_sidecar: bool = False
    loads_other_sizes: bool | None = False
    size_note: str = ""
    zero_snr_note: str = ""
    exceptions: Mapping[str, tuple[bool | None, str]] = field(default_factory=dict)

    def exception(self, variant: str, prediction: str) -> tuple[bool | None, str] | None:
        """Return whether it loads files of a variant and prediction type, and why; None for files like all others."""
        return self.exceptions.get(variant) or self.exceptions.get(prediction)


CHECKPOINTS: Mapping[str, CheckpointFacts] = {
    "diffusers": CheckpointFacts(
        size_note="needs the config of this size: convert the file to a diffusers folder",
        exceptions={
            "depth": (False, "has no from_single_file for depth models: convert the file to a diffusers folder"),
            "edm": (False, "takes it for epsilon: images are wrong without an EDM scheduler"),
        },
    ),
    "ComfyUI": CheckpointFacts(
        reads_velocity_tensors=True,
        size_note="does not recognise a model of a size that was never published",
        exceptions={"depth": (False, "does not support depth models")},
    ),
    "A1111": CheckpointFacts(  # its support of the tensors came after this release
        reads_sidecar=True,
        loads_other_sizes=None,
        size_note="unknown; it builds models of the published sizes",
        exceptions={"edm": (False, "takes it for epsilon: images are wrong")},
        zero_snr_note='set "Noise schedule for sampling" to zero terminal SNR',
    ),
    "Forge": CheckpointFacts(
        reads_velocity_tensors=True,
        reads_sidecar=True,
        loads_other_sizes=None,
        size_note="unknown; it recognises models of the published sizes",
        exceptions={"depth": (None, "not measured with depth models"), "edm": (None, "not measured with EDM")},
    ),
}


def velocity_note(program: str, *, has_tensors: bool, has_sidecar: bool, zero_snr: bool) -> str:
    """Return the user's steps for a program to use the v-prediction of an SDXL file; empty if none are needed.

    `has_tensors`: the file has the tensor `v_pred`; `has_sidecar`: a .yaml next to it states v-prediction.
    """
    facts = CHECKPOINTS[program]
    if facts.reads_velocity_tensors and has_tensors:
        return ""
    if not facts.reads_sidecar:
        if facts.reads_velocity_tensors:
            return "the file has no v_pred marker: set v-prediction yourself"
        snr = ", rescale_betas_zero_snr=True" if zero_snr else ""
        return f'set prediction_type="v_prediction"{snr} in its scheduler'
    note = "keep the .yaml next to it" if has_sidecar else "takes it for epsilon unless a .yaml is next to it"
    return f"{note}; {facts.zero_snr_note}" if zero_snr and facts.zero_snr_note else note
