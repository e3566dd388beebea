"""The runs of the pretended GPU on a real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.builders.images import draw_folder
from tests.builders.runs import run
from tests.training.test_devices import assert_all_went_well
from tests.training.test_pretended_gpu import CASES, config_there

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.fixture(scope="module")
def two_sizes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw_folder(tmp_path_factory.mktemp("two-sizes"), sizes=[(64, 64), (64, 64), (96, 64)])


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_all_the_same(any_model: Path, two_sizes: Path, tmp_path: Path, case: str, is_cached: bool) -> None:
    changes: dict[str, Any] = CASES[case]
    assert_all_went_well(run(config_there(any_model, two_sizes, tmp_path, is_cached=is_cached, **changes)))
