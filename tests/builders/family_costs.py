"""The costs of each family: `python -m tests.builders.family_costs` writes docs/generated/family_costs.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from modules.config.codec import decode, encode
from modules.config.presets import BUILT_IN_DIR, Preset
from modules.config.schema import Config
from modules.data.buckets import Size
from modules.estimate.run import plain_bytes
from modules.families.registry import FAMILIES
from modules.families.spec import FamilySpec
from modules.system.paths import PROGRAM_ROOT
from tests.builders.configs import laid_over
from trainer.preflight.run_budget import known_budget, on_a_gpu
from trainer.preflight.search import StepTimes

DOCUMENT = PROGRAM_ROOT / "docs" / "generated" / "family_costs.md"
_SIDE_PX = 1024
_HEAD = """# Costs of the model families

Written by `python -m tests.builders.family_costs`; `tests/unit/test_family_costs.py` compares it with the program.

- **Files**, **Lines**: the Python in the family's folder. Outside of it a family has its line in
  `modules/families/registry.py`, and its presets; what several families share is in `modules/families/parts`.
- **Weights**: all parts of the repository named here, in bfloat16; other sizes of the model are not listed.
- **LoRA at 1024 px**: the estimate for rank 16, one image, a frozen model in bfloat16 and checkpointing of all blocks,
  without quantization or offloading; presets need less. The time of a step is that of a mid-range card: it may be half
  or twice as long.
- **Terms**: what the family's presets state about the use of the weights; empty if there are no restrictions.

"""
COLUMNS = (
    *("Family", "Files", "Lines", "Presets", "Repository", "Weights", "LoRA at 1024 px: memory", "time of a step"),
    "Terms",
)


def document() -> str:
    """Return the document, which ends with a line break."""
    rows = [COLUMNS, ("---",) * len(COLUMNS), *map(_row, FAMILIES.values())]
    return _HEAD + "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def _row(spec: FamilySpec) -> tuple[str, ...]:
    code = [file for file in _folder(spec).rglob("*.py") if file.stat().st_size > 0]
    presets = sorted((BUILT_IN_DIR / spec.name).glob("#*.json"))
    configs = {file.stem: Preset(file.stem, spec.name, file).load().config for file in presets}
    config = next(config for name, config in configs.items() if _is_usual(name))
    estimate = _estimate(_whole(config))
    return (
        f"{spec.label} (`{spec.name}`)",
        str(len(code)),
        str(sum(len(file.read_text(encoding="utf-8").splitlines()) for file in code)),
        str(len(presets)),
        config.model.base_model,
        *estimate,
        _terms(config),
    )


def _folder(spec: FamilySpec) -> Path:
    return PROGRAM_ROOT / "modules" / "families" / spec.name


def _is_usual(name: str) -> bool:
    """Return whether a preset is a LoRA from images, of the family's first model."""
    return "LoRA" in name and not re.search(r"DPO|GRPO|DGPO|DDPO|NFT|AlignProp|inpaint|edit|kontext", name)


def _whole(config: Config) -> Config:
    """Return the config without quantization and offloading, one image at 1024 px in a step, on a GPU."""
    plain: dict[str, Any] = {"dtype": "bfloat16", "offload_fraction": 0.0, "file": ""}
    return laid_over(
        decode(encode(config)).config,
        {
            "general": {"train_device": "cuda"},
            "parts": {part.name: {**plain, "checkpointing": "block"} for part in config.family.parts},
            "data": {"resolution_px": [_SIDE_PX]},
            "training": {"batch_size": 1, "accumulation_steps": 1, "precision": "bfloat16"},
            "sampling": {"prompts": []},
        },
    )


def _estimate(config: Config) -> tuple[str, str, str]:
    """Return the size of the weights, the memory of the run and the time of its step."""
    found = known_budget(config, {Size(_SIDE_PX, _SIDE_PX): 20})
    if found is None:
        return "?", "?", "?"
    budget = on_a_gpu(found)
    weights = sum(plain_bytes(budget.passes, part, budget.run.plans) for part in budget.run.plans)
    seconds = StepTimes(budget).seconds(config, num_cores=1)
    return f"{weights / 1e9:.1f} GB", f"{budget.peak_bytes / 1e9:.1f} GB", f"{seconds:.1f} s"


def _terms(config: Config) -> str:
    sentences = re.split(r"(?<=\.) ", config.general.notes)
    return " ".join(s for s in sentences if re.search(r"licen[cs]e|commercial|for research", s, re.I)).replace("|", "/")


if __name__ == "__main__":
    DOCUMENT.write_text(document(), encoding="utf-8")
