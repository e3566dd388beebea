"""The rewards, one record each. Torch-free: the factories are named and imported when a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Slot = Literal["file", "clip_model"]
_SCORERS = "modules.rewards.scorers"


@dataclass(frozen=True, slots=True)
class RewardFile:
    """Something published that a reward needs: in which repository, and about how large.

    `slot` is the setting that names another in its place. `name` is the one file that is wanted, or empty for a CLIP
    model in transformers' layout: its config.json and model.safetensors. `item_bytes` is the size of its numbers.
    """

    slot: Slot
    repo: str
    name: str
    size_bytes: int
    item_bytes: int = 4

    @property
    def names(self) -> tuple[str, ...]:
        """The files of the repository that are wanted, the largest last."""
        return (self.name,) if self.name else ("config.json", "model.safetensors")

    @property
    def loaded_bytes(self) -> int:
        """What it takes on the training device, where reward models are in float32."""
        return self.size_bytes * 4 // self.item_bytes

    @property
    def size_words(self) -> str:
        """The size of the download as people read it."""
        size = self.size_bytes
        return f"{size / 1e9:.1f} GB" if size >= 5e8 else f"{size / 1e6:.0f} MB"


@dataclass(frozen=True, slots=True)
class RewardSpec:
    """A reward before anything is loaded.

    `factory` names the function that makes it, as "module:function", called with a `Scorer` and a `RewardContext`.
    `scale` says what its numbers are like; `licence` and `source` are those of the weights.
    """

    name: str
    label: str
    help: str
    factory: str
    scale: str
    is_differentiable: bool = True
    files: tuple[RewardFile, ...] = ()
    licence: str = ""
    source: str = ""


_CLIP_L = "openai/clip-vit-large-patch14"

REWARDS: Mapping[str, RewardSpec] = {
    spec.name: spec
    for spec in (
        RewardSpec(
            "brightness",
            "Brightness",
            "How light an image is on average.",
            f"{_SCORERS}.brightness:make",
            "0 (black) to 1 (white)",
        ),
        RewardSpec(
            "colour_target",
            "Closeness to a colour",
            "How near the pixels of an image are to a colour.",
            f"{_SCORERS}.colour_target:make",
            "-1 (as far as can be) to 0 (that colour alone)",
        ),
        RewardSpec(
            "contrast",
            "Contrast",
            "How much light and dark differ within an image.",
            f"{_SCORERS}.contrast:make",
            "0 (one grey) to 0.5 (half black, half white)",
        ),
        RewardSpec(
            "sharpness",
            "Sharpness",
            "How much fine detail an image has; noise counts as detail.",
            f"{_SCORERS}.sharpness:make",
            "0 (one tone) upwards",
        ),
        RewardSpec(
            "symmetry",
            "Symmetry",
            "How alike the left and the right half of an image are.",
            f"{_SCORERS}.symmetry:make",
            "-1 (opposite) to 0 (mirrored)",
        ),
        RewardSpec(
            "pickscore",
            "PickScore",
            "How well people would like it as a picture of its caption, learned from their picks among two.",
            f"{_SCORERS}.pickscore:make",
            "18 to 24",
            files=(RewardFile("file", "yuvalkirstain/PickScore_v1", "", 3_940_000_000),),
            licence="MIT",
            source="Kirstain et al. 2023, Pick-a-Pic",
        ),
        RewardSpec(
            "clip_score",
            "CLIP score",
            "How well an image fits its caption.",
            f"{_SCORERS}.clip_score:make",
            "0.2 to 0.4",
            files=(RewardFile("file", _CLIP_L, "", 1_710_000_000),),
            licence="MIT",
            source="Radford et al. 2021; Hessel et al. 2021",
        ),
        RewardSpec(
            "aesthetic",
            "Aesthetic (LAION)",
            "How pleasing an image is, whatever its caption.",
            f"{_SCORERS}.aesthetic:make",
            "1 to 10",
            files=(
                RewardFile("file", "trl-lib/ddpo-aesthetic-predictor", "aesthetic-model.pth", 3_700_000),
                RewardFile("clip_model", _CLIP_L, "", 1_710_000_000),
            ),
            licence="Apache-2.0",
            source="LAION aesthetic predictor v2 (sac+logos+ava1-l14-linearMSE)",
        ),
        RewardSpec(
            "hps",
            "Human preference (HPS v2)",
            "How well people would like it as a picture of its caption. Only images of one caption compare.",
            f"{_SCORERS}.hps:make",
            "0.2 to 0.4",
            files=(RewardFile("file", "xswu/HPSv2", "HPS_v2_compressed.pt", 1_970_000_000, item_bytes=2),),
            licence="Apache-2.0",
            source="Wu et al. 2023, Human Preference Score v2",
        ),
        RewardSpec(
            "user_code",
            "Your own function",
            "A function in a Python file of yours. It runs as a program with your rights: only files that you approved "
            "are run.",
            f"{_SCORERS}.user_code:make",
            "whatever the function returns",
        ),
    )
}

NEED_FILES = tuple(name for name, spec in REWARDS.items() if any(f.slot == "file" for f in spec.files))
"""The rewards whose weights come from a file or a repository."""

NEED_CLIP = tuple(name for name, spec in REWARDS.items() if any(f.slot == "clip_model" for f in spec.files))
"""The rewards that look through a CLIP model beside their own weights."""


def reward_labels() -> Mapping[str, str]:
    """Return the rewards' names with the labels people know them by."""
    return {name: spec.label for name, spec in REWARDS.items()}


def hold_out_labels() -> Mapping[str, str]:
    """Return what may be held out: none, or any of the rewards."""
    return {"none": "None", **reward_labels()}
