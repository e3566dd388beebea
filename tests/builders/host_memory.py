"""Loads a Z-Image with large random weights in a process of its own: `python -m tests.builders.host_memory`.

Prints the bytes of its parts as they are in the files and as they are quantized, the most memory that the process had
for the run's own data while it loaded the model and filled the caches, and what preflight estimates of it.
"""

from __future__ import annotations

import json
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from diffusers.models.transformers.transformer_z_image import ZImageTransformer2DModel
from transformers import Qwen3Config, Qwen3Model

from modules.data.buckets import Size
from tests.builders.configs import small_config
from tests.builders.images import draw_folder
from tests.builders.models import write_folder
from tests.builders.runs import run
from tests.builders.z_image import SCHEDULER, tiny_flux_vae, write_tokenizer
from trainer.preflight.run_budget import known_budget, reading_bytes
from trainer.run import training_run

WIDTH = 1024
LARGE = ("transformer", "text_encoder")


def large_transformer() -> ZImageTransformer2DModel:
    """A transformer with 100 million weights."""
    return ZImageTransformer2DModel(
        dim=WIDTH,
        n_layers=5,
        n_refiner_layers=1,
        n_heads=8,
        n_kv_heads=8,
        cap_feat_dim=WIDTH,
        axes_dims=[32, 48, 48],
        axes_lens=[1024, 32, 32],
    )


def large_qwen() -> Qwen3Model:
    """A decoder with 80 million weights."""
    return Qwen3Model(
        Qwen3Config(
            vocab_size=260,
            hidden_size=WIDTH,
            intermediate_size=4 * WIDTH,
            num_hidden_layers=5,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=WIDTH // 8,
            max_position_embeddings=1024,
        )
    )


class Peak:
    """The most private memory of this process while it is watched, more than at the beginning."""

    def __init__(self) -> None:
        self._first, self._most, self._ends = _private_bytes(), 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def end(self) -> int:
        """Return the bytes."""
        self._ends.set()
        self._thread.join()
        return self._most - self._first

    def _watch(self) -> None:
        while not self._ends.wait(0.002):
            self._most = max(self._most, _private_bytes())


def _private_bytes() -> int:
    """Return the memory of this process that belongs to no file (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def main(folder: Path, *, dtype: str, precision: str) -> dict[str, Any]:
    """Load the model as a run does; return the figures."""
    torch.set_num_threads(1)
    model = folder / "model"
    parts = {"transformer": large_transformer, "text_encoder": large_qwen, "vae": tiny_flux_vae}
    write_folder(model, "ZImagePipeline", parts, SCHEDULER, seed=0)
    write_tokenizer(model / "tokenizer")
    images = draw_folder(folder / "images", sizes=[(64, 64)] * 2, captions=["a disc"])
    config = small_config(
        folder,
        model=model,
        images=images,
        parts={name: {"dtype": dtype} for name in LARGE},
        training={"precision": precision, "epochs": 1},
        data={"latent_cache": True, "text_cache": True},
    )
    budget = known_budget(config, Counter({Size(64, 64): 2}))
    assert budget is not None
    load_run, peaks, sizes = training_run.load_run, list[int](), dict[str, int]()

    def watched(setup: Any) -> Any:
        peak = Peak()
        loaded = load_run(setup)
        peaks.append(peak.end())
        for name, part in loaded[0].family.parts.items():
            sizes[name] = sum(p.nbytes for p in part.module.parameters())
        return loaded

    training_run.load_run = watched
    run(config)
    files = {n: sum(f.stat().st_size for f in (model / n).glob("*.safetensors")) for n in LARGE}
    return {
        "peak": peaks[0],
        "estimate": reading_bytes(budget),
        "files": files,
        "kept": {name: sizes[name] for name in LARGE},
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), dtype=sys.argv[2], precision=sys.argv[3])))
