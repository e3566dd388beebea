"""sample: generate a config's sample prompts with its base model, with a LoRA if one is given."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modules.system.errors import DarkroomError
from modules.system.paths import from_caller, safe_name
from trainer.cli import Verb
from trainer.cli.options import add_config_argument, read_config
from trainer.launch import import_engine


def _sample(options: argparse.Namespace) -> int:
    loaded = read_config(options.config, options.changes, preset=options.preset)
    prompts = [p for p in loaded.config.sampling.prompts if p.enabled]
    if not prompts:
        raise DarkroomError("The config has no sample prompts.", advice="Add some on the Sampling page.")
    import_engine(beside_window=False)
    from trainer.run.standalone import generate_samples

    folder = from_caller(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    lora = from_caller(options.lora) if options.lora else None
    for index, (prompt, image) in enumerate(zip(prompts, generate_samples(loaded.config, lora), strict=True)):
        path: Path = folder / f"{index + 1:02d} {safe_name(prompt.prompt, max_chars=40)}.png"
        image.save(path)
        sys.stdout.write(f"{path}\n")
    return 0


def _arguments(parser: argparse.ArgumentParser) -> None:
    add_config_argument(parser)
    parser.add_argument(
        "--lora", metavar="FILE", help="an adapter file (LoRA, LoHa, LoKr or OFT) to apply to the base model"
    )
    parser.add_argument("--out", metavar="FOLDER", default="samples", help="the output folder (default: samples)")


SAMPLE = Verb("generate the samples of a config", _arguments, _sample)
