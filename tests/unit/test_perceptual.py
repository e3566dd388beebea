"""The perceptual distance: its formula against torch's own layers, its masks, and its files."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from modules.objectives.methods.reconstruction import Reconstruction
from modules.objectives.perceptual import PerceptualDistance, read_perceptual_distance
from modules.objectives.perceptual_files import STAGES, problems_of_files
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from tests.builders.vgg import NARROW, lpips_tensors, vgg_tensors, write_perceptual_files

LAYERS = "CRCRPCRCRPCRCRCRPCRCRCRPCRCRCR"  # torchvision's "D", to relu5_3
TAPS = (3, 8, 15, 22, 29)


@pytest.fixture
def distance(tmp_path: Path) -> PerceptualDistance:
    files = write_perceptual_files(tmp_path)
    return read_perceptual_distance(Path(files["vgg_file"]), Path(files["lpips_file"]), CPU)


def some_images(seed: int, height: int = 40, width: int = 32) -> torch.Tensor:
    return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def features_by_layers(images: torch.Tensor) -> list[torch.Tensor]:
    """What torchvision's `vgg16().features` has at the ends of its stages."""
    tensors, found = vgg_tensors(), []
    x = (images - torch.tensor([-0.030, -0.088, -0.188]).view(1, 3, 1, 1)) / torch.tensor([0.458, 0.448, 0.450]).view(
        1, 3, 1, 1
    )
    for index, kind in enumerate(LAYERS):
        if kind == "C":
            weight = tensors[f"features.{index}.weight"]
            layer = nn.Conv2d(weight.shape[1], weight.shape[0], 3, padding=1)
            layer.load_state_dict({n: tensors[f"features.{index}.{n}"] for n in ("weight", "bias")})
            x = layer(x)
        else:
            x = nn.ReLU()(x) if kind == "R" else nn.MaxPool2d(2, 2)(x)
        if index in TAPS:
            found.append(x)
    return found


def test_it_is_that_of_the_paper(distance: PerceptualDistance) -> None:
    one, other = some_images(0), some_images(1)
    expected = torch.zeros(2)
    for x, y, weight in zip(features_by_layers(one), features_by_layers(other), lpips_tensors().values(), strict=True):
        x, y = (f / (f.square().sum(dim=1, keepdim=True).sqrt() + 1e-10) for f in (x, y))
        expected += (weight * (x - y) ** 2).sum(dim=1).mean(dim=(1, 2))
    torch.testing.assert_close(distance(one, other), expected)
    assert (distance(one, other) > 0).all()
    assert torch.equal(distance(one, one), torch.zeros(2))


def test_masks_weigh_the_places(distance: PerceptualDistance) -> None:
    images = some_images(0)
    other = images.clone()
    other[:, :, :, 16:] = some_images(1)[:, :, :, 16:]
    ones = torch.ones(2, 1, 40, 32)
    torch.testing.assert_close(distance(other, images, ones), distance(other, images))
    torch.testing.assert_close(distance(other, images, 0.5 * ones), 0.5 * distance(other, images))
    left, right = ones.clone(), ones.clone()
    left[..., 16:] = 0
    right[..., :16] = 0
    assert (distance(other, images, left) < 0.5 * distance(other, images, right)).all()
    assert torch.equal(distance(other, images, 0 * ones), torch.zeros(2))


def test_gradients_reach_the_decoded_images_only(distance: PerceptualDistance) -> None:
    """Finite also where no feature of a place is active, in float32 under autocast."""
    decoded, images = some_images(0).requires_grad_(), some_images(1).requires_grad_()
    silenced = [[(weight, bias - 100) for weight, bias in stage] for stage in distance.stages]
    dead = PerceptualDistance(silenced, distance.weights, distance.scaling)
    for one in (distance, dead):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = one(decoded.bfloat16(), images)
        assert found.dtype == torch.float32
        (gradient,) = torch.autograd.grad(found.sum(), decoded)
        assert gradient.isfinite().all()
        assert bool((gradient != 0).any()) is (one is distance)
    assert not any(t.requires_grad for stage in distance.stages for layer in stage for t in layer)


def renamed(tensors: dict[str, torch.Tensor], form: str) -> dict[str, torch.Tensor]:
    slices = {number: index for index, stage in enumerate(STAGES, 1) for number in stage}
    layers = {n: n.split(".") for n in tensors if n.startswith("features.")}
    return {form.format(stage=slices[int(p[1])], number=p[1], kind=p[2]): tensors[n] for n, p in layers.items()}


@pytest.mark.parametrize("form", ["net.slice{stage}.{number}.{kind}", "{number}.{kind}", "features.{number}.{kind}"])
def test_files_of_other_programs(distance: PerceptualDistance, tmp_path: Path, form: str) -> None:
    """Those of the package lpips have both in one file; pickled ones are read as weights only."""
    file = tmp_path / "lpips.pth"
    torch.save({**renamed(vgg_tensors(), form), **lpips_tensors()}, file)
    one, other = some_images(0), some_images(1)
    assert torch.equal(read_perceptual_distance(file, file, CPU)(one, other), distance(one, other))


def test_the_published_names_of_the_weights(distance: PerceptualDistance, tmp_path: Path) -> None:
    """Those of vivym/lpips are 0.weight to 4.weight."""
    save_file({f"{n}.weight": t for n, t in enumerate(lpips_tensors().values())}, tmp_path / "linear.safetensors")
    read = read_perceptual_distance(tmp_path / "vgg16.safetensors", tmp_path / "linear.safetensors", CPU)
    assert torch.equal(read(some_images(0), some_images(1)), distance(some_images(0), some_images(1)))


def test_files_that_do_not_fit_are_refused(distance: PerceptualDistance, tmp_path: Path) -> None:
    vgg, lpips = tmp_path / "vgg16.safetensors", tmp_path / "lpips.safetensors"
    with pytest.raises(DarkroomError, match="does not contain the convolutions of VGG16"):
        read_perceptual_distance(lpips, lpips, CPU)
    with pytest.raises(DarkroomError, match="does not contain the weights of LPIPS"):
        read_perceptual_distance(vgg, vgg, CPU)
    save_file(lpips_tensors((64, *NARROW[1:])), tmp_path / "wide.safetensors")
    with pytest.raises(DarkroomError, match=r"lin0\.model\.1\.weight has 64 channels, the features have 4"):
        read_perceptual_distance(vgg, tmp_path / "wide.safetensors", CPU)


def test_preflight_names_what_is_missing(distance: PerceptualDistance, tmp_path: Path) -> None:
    own = {"vgg_file": str(tmp_path / "vgg16.safetensors"), "lpips_file": str(tmp_path / "lpips.safetensors")}

    def found(*, offline: bool = False, strength: float = 1.0, **files: str) -> list[tuple[str, str, str]]:
        settings = Reconstruction(perceptual_strength=strength, **files)
        problems = problems_of_files(settings, offline=offline, hub_cache_dir=str(tmp_path / "hub"))
        return [(p.path, p.severity, p.message) for p in problems]

    assert found(**own, offline=True) == []
    assert found(strength=0.0, offline=True) == []
    [vgg, lpips] = found()
    assert (vgg[:2], lpips[:2]) == (("training.vae.vgg_file", "info"), ("training.vae.lpips_file", "info"))
    assert "model.safetensors of timm/vgg16.tv_in1k at Hugging Face (about 0.6 GB). It will be downloaded" in vgg[2]
    assert "vgg_lpips_linear.safetensors of vivym/lpips at Hugging Face (about 6.3 kB)" in lpips[2]
    [vgg, lpips] = found(offline=True)
    assert (vgg[1], lpips[1]) == ("error", "error")
    assert "is not on this computer, and offline mode is on" in vgg[2]
    [missing] = found(**{**own, "vgg_file": str(tmp_path / "none.safetensors")})
    assert missing[1] == "error"
    assert "none.safetensors does not exist" in missing[2]
    [swapped, other] = found(vgg_file=own["lpips_file"], lpips_file=own["vgg_file"])
    assert "does not contain the convolutions of VGG16" in swapped[2]
    assert "does not contain the weights of LPIPS" in other[2]
