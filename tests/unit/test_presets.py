"""Presets: the built-in ones load cleanly and stay as they are; the user's have their own place."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from modules.config import presets
from modules.config.codec import decode, encode
from modules.config.migrations.chain import NEWEST_DARKROOM
from modules.config.own_presets import import_presets
from modules.config.presets import BUILT_IN_DIR, Preset, list_presets, save_preset
from modules.config.quantized_parts import quantized_parts
from modules.config.rules import problems_of
from modules.config.schema import Config
from modules.config.usage import learns_from, reads_references
from modules.data.buckets import Size
from modules.families.registry import FAMILIES
from modules.objectives.registry import METHODS
from modules.settings.edit import get_path, live_records, replace_value, set_path
from modules.system import hardware
from modules.system.errors import DarkroomError
from modules.system.hardware import Hardware
from modules.system.paths import user_presets_dir
from tests.builders.for_each import for_each
from tests.builders.images import draw_folder
from tests.unit.test_codec import places
from trainer.preflight import check
from trainer.preflight.room import on_card
from trainer.preflight.run_budget import Budget, known_budget, memory_estimate

BUILT_IN = sorted(BUILT_IN_DIR.glob("*/#*.json"))


@pytest.mark.parametrize("file", BUILT_IN, ids=lambda f: f.stem)
def test_a_built_in_preset_loads_without_problems_and_is_ready_to_start(file: Path) -> None:
    loaded = Preset(file.stem, file.parent.name, file).load()
    assert loaded.problems == []
    assert not loaded.was_migrated
    assert loaded.config.general.notes.strip(), "a preset describes its purpose"
    assert loaded.config.model.family.name == file.parent.name
    errors = {p.path for p in problems_of(loaded.config) if p.severity == "error"}
    assert errors <= {"concepts", "validation.every"}, "all that may be missing are the user's own images"


@pytest.mark.parametrize("file", BUILT_IN, ids=lambda f: f.stem)
def test_a_built_in_preset_gives_no_warnings(file: Path) -> None:
    """Three of them kept weights in float16 and computed in bfloat16."""
    config = Preset(file.stem, file.parent.name, file).load().config
    assert [str(p) for p in problems_of(config) if p.severity == "warning"] == []


@pytest.mark.parametrize("file", BUILT_IN, ids=lambda f: f.stem)
def test_a_built_in_preset_is_sparse(file: Path) -> None:
    raw = json.loads(file.read_text(encoding="utf-8"))
    assert raw["darkroom_version"] == NEWEST_DARKROOM
    own = {p for p in places(raw) if p[0] != "concepts" and p[:2] != ("sampling", "prompts")}
    assert len(own) < len(places(encode(Config()))) / 2, "a preset contains only its own settings"
    assert "unknown" not in raw
    # Only the demo has images of its own; the others use the user's.
    assert ("concepts" in raw) == file.stem.startswith("#demo")


@pytest.mark.parametrize("file", BUILT_IN, ids=lambda f: f.stem)
def test_a_built_in_preset_states_only_what_differs_from_the_defaults(file: Path) -> None:
    raw = json.loads(file.read_text(encoding="utf-8"))
    config = Preset(file.stem, file.parent.name, file).load().config
    same = [
        r.path
        for r in live_records(config)
        if r.kind not in ("list", "map", "section") and _states(raw, r.path) and get_path(config, r.path) == r.default
    ]
    assert same == []


@pytest.mark.daily(20)
@pytest.mark.parametrize("file", BUILT_IN, ids=lambda f: f.stem)
def test_a_built_in_preset_passes_the_check_with_images(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is missing, which is not an error: it is a repository that is downloaded at the start.

    The presets are for GPUs: without one, most are an error.
    """
    monkeypatch.setattr(hardware, "here", lambda: Hardware("cu128", is_mac=False, capabilities=(8.9,)))
    monkeypatch.setattr(hardware, "cards_of_torch", lambda _: None)  # a process of its own, for each check
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    config = Preset(file.stem, file.parent.name, file).load().config
    tree = encode(config)
    if not config.concepts:
        for name in ("training/chosen", "training/rejected", "validation"):
            (tmp_path / name).mkdir(parents=True)
            draw_folder(tmp_path / name, sizes=[(96, 96)] * 4, captions=["a disc, <embedding>"])
            for image in sorted((tmp_path / name).glob("*.png")) if reads_references(config) else ():
                shutil.copy(image, image.with_name(f"{image.stem}-condlabel.png"))
        (tmp_path / "prompts.txt").write_text("a disc\na square\n", encoding="utf-8")
        tree["concepts"] = [
            {
                "images": {"path": str(tmp_path / "training" / "chosen")},
                "pairs": {"path": str(tmp_path / "training"), "kind": "pairs"},
                "prompts": {"path": str(tmp_path / "prompts.txt"), "kind": "prompts"},
            }[learns_from(config)]
        ]
        if not config.validation.every.is_never:
            tree["concepts"].append({"path": str(tmp_path / "validation"), "kind": "validation"})
    tree["general"] |= {"workspace_dir": str(tmp_path / "w"), "cache_dir": str(tmp_path / "c"), "train_device": "auto"}
    tree["output"]["destination"] = str(tmp_path / "out" / "result.safetensors")
    report = check(decode(tree).config)
    assert report.errors == []
    assert report.preview is not None
    assert report.preview.total_steps > 0


OF_CARDS = [f for f in BUILT_IN if not f.stem.startswith("#demo")]


def on_named_card(file: Path) -> tuple[Budget, int]:
    """The least that a preset needs while its own sizes are trained and sampled, and the bytes of its card."""
    config = Preset(file.stem, file.parent.name, file).load().config
    card_gb = int(re.search(r"GPU with (\d+) GB", config.general.notes)[1])  # type: ignore[index]
    side_px = config.data.resolution_px[0]
    sample = {"prompt": "x", "width_px": side_px, "height_px": side_px}
    config, problems = set_path(config, "sampling.prompts", [sample])
    assert not problems
    config, problems = set_path(config, "general.train_device", "cuda")
    assert not problems
    budget = known_budget(config, {Size(side_px, side_px): 50})
    assert budget is not None
    if (named := re.search(r"(\d+) GB$", file.stem)) is not None:
        assert int(named[1]) == card_gb
    return budget, card_gb * 10**9


@pytest.mark.daily(16)
@pytest.mark.parametrize("file", OF_CARDS, ids=lambda f: f.stem)
def test_a_preset_fits_the_card_it_names(file: Path) -> None:
    """With a tenth of the card left for the system. It recomputes no more than its card needs, and offloads no more."""
    budget, card_bytes = on_named_card(file)
    assert budget.peak_bytes < 0.9 * card_bytes
    name = "vae" if budget.run.reconstructs else budget.config.family.denoiser.name
    settings, method = budget.config.part(name), budget.config.training.method.name
    if not settings.offload_fraction:
        assert settings.checkpointing == ("whole" if method == "alignprop" else "auto")
        return
    path = f"parts.{name}.offload_fraction"
    less = budget.with_config(replace_value(budget.config, path, max(0.0, settings.offload_fraction - 0.1)))
    assert less is not None
    assert less.peak_bytes > 0.9 * card_bytes


@pytest.mark.daily(4)
@pytest.mark.parametrize("file", OF_CARDS, ids=lambda f: f.stem)
def test_a_preset_uses_the_card_it_names(file: Path) -> None:
    """Seven tenths at least, unless each block keeps so much that none more fits."""
    budget, card_bytes = on_named_card(file)
    placed = on_card(budget, card_bytes)
    assert placed.peak_bytes < 0.9 * card_bytes
    every, some = (sum(len(p.checkpointed_blocks) for p in b.run.plans.values()) for b in (on_card(budget, 0), placed))
    assert placed.peak_bytes > 0.7 * card_bytes or every == some > 0


TRANSFORMERS = [f for f in BUILT_IN if f.parent.name not in ("sd", "sdxl")]


@pytest.mark.daily(12)
@pytest.mark.parametrize("file", TRANSFORMERS, ids=lambda f: f.stem)
def test_presets_of_transformers_are_estimated_at_two_sizes(file: Path) -> None:
    """More pixels need more activations and the same weights; the encoders are never there with the denoiser.

    512 and 1024 px, or half of the model's own size and that: deeper latents have fewer tokens than prompts at 512 px.
    """
    config = Preset(file.stem, file.parent.name, file).load().config
    config, problems = set_path(config, "general.train_device", "cuda")
    assert not problems
    side_px = max(1024, config.family.default_resolution_px)
    small, large = (memory_estimate(config, {Size(side, side): 50}) for side in (side_px // 2, side_px))
    assert small is not None
    assert large is not None
    assert large.peak.total_bytes >= small.peak.total_bytes  # equal if the text encoder needs the most
    encoding = next(phase for phase in large.phases if phase.phase == "encoding captions")
    training = next(phase for phase in large.phases if phase.phase == "training")
    smaller = next(phase for phase in small.phases if phase.phase == "training")
    assert training.total_bytes > smaller.total_bytes
    # Small images may need less than the optimizer's step: the peak of training has no activations then.
    assert dict(training.parts)["activations"] > 1.5 * dict(smaller.parts).get("activations", 0)
    assert dict(encoding.parts)["weights"] + dict(training.parts)["weights"] > dict(large.peak.parts)["weights"]


@pytest.mark.parametrize("name", ["#sdxl 1.0 LoRA 6 GB", "#sdxl 1.0 LoRA 8 GB"])
def test_the_presets_of_the_smallest_cards_have_a_quantized_base(name: str) -> None:
    config = Preset(name, "sdxl", BUILT_IN_DIR / "sdxl" / f"{name}.json").load().config
    assert set(quantized_parts(config).formats) == {"unet"}


def _states(raw: dict[str, object], path: str) -> bool:
    node: object = raw
    for name in path.split("."):
        if not isinstance(node, dict) or name not in node:
            return False
        node = node[name]
    return True


def test_there_are_no_other_files_in_the_folder_of_presets() -> None:
    assert {f for f in BUILT_IN_DIR.rglob("*.json")} == set(BUILT_IN)


@pytest.fixture
def built_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of built-in presets of two families."""
    folder = tmp_path / "built in"
    for name in ("sd/#b", "sd/#a", "sd/plain", "flux/#z"):
        file = folder / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text('{"darkroom_version": 7, "general": {"notes": "built in"}}')
    monkeypatch.setattr(presets, "BUILT_IN_DIR", folder)
    return folder


def test_presets_are_listed_built_in_ones_first(built_in: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    for name in ("zebra 12", "zebra 8", "ant", "#not mine", "._ant"):
        own.mkdir(exist_ok=True)
        (own / f"{name}.json").write_text("{}")
    listed = list_presets(user_dir=own)
    assert [(p.group, p.name) for p in listed] == [
        ("sd", "#a"), ("sd", "#b"), ("flux", "#z"), ("yours", "ant"), ("yours", "zebra 8"), ("yours", "zebra 12"),
    ]  # fmt: skip
    assert [p.is_built_in for p in listed] == [True, True, True, False, False, False]


def test_without_a_folder_of_the_user_there_are_the_built_in_ones(built_in: Path) -> None:
    assert not user_presets_dir().exists()
    assert all(p.is_built_in for p in list_presets())


@pytest.mark.parametrize("name", ["cat", "#cat", "## cat", " #cat", "# # cat"])
def test_a_preset_of_the_user_never_begins_with_the_mark(built_in: Path, name: str) -> None:
    preset = save_preset(Config(), name)
    assert preset.name == "cat"
    assert not preset.is_built_in
    assert preset.path.parent == user_presets_dir()
    assert [p.name for p in list_presets() if not p.is_built_in] == ["cat"]
    assert preset.load().config == Config()


@pytest.mark.parametrize("name", ["#a", "sd/#a", "../built in/sd/#a", "..\\#a", "/etc/#a"])
def test_a_built_in_preset_is_never_overwritten(built_in: Path, name: str) -> None:
    before = {f: f.read_bytes() for f in built_in.rglob("*.json")}
    preset = save_preset(Config(), name)
    assert preset.path.parent == user_presets_dir()
    assert not preset.name.startswith("#")
    assert {f: f.read_bytes() for f in built_in.rglob("*.json")} == before


@pytest.mark.parametrize("name", ["", "#", "  ", "# #", "...", "///", "#__", "-"])
def test_a_name_without_letters_is_refused(name: str) -> None:
    """Three dots used to make a preset called "unnamed"."""
    with pytest.raises(DarkroomError, match="needs a name"):
        save_preset(Config(), name)
    assert not user_presets_dir().exists()


def test_saving_again_replaces() -> None:
    save_preset(Config(), "cat")
    edited = Config.model_validate({"training": {"epochs": 3}})
    preset = save_preset(edited, "cat")
    assert preset.load().config == edited
    assert [f.name for f in user_presets_dir().iterdir()] == ["cat.json"]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"darkroom_version": 0}'])
def test_a_broken_preset_is_listed_and_loads_with_a_problem(tmp_path: Path, content: str) -> None:
    (tmp_path / "broken.json").write_text(content)
    preset = next(p for p in list_presets(user_dir=tmp_path) if p.name == "broken")
    assert preset.load().config == Config()


def test_other_files_in_the_folder_are_skipped(built_in: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "a folder.json").mkdir(parents=True)
    (own / "gone.json").symlink_to(own / "nowhere")
    for name in (".json", "notes.txt", "cat.json", "cat.json.bak", ".cat.json.writing-1234", "ça va.json"):
        (own / name).write_bytes(b"\xff\x00")
    assert [p.name for p in list_presets(user_dir=own) if not p.is_built_in] == ["cat", "ça va"]
    assert len(list_presets(user_dir=own / "cat.json")) == 3, "a file where the folder should be"


def test_a_folder_that_cannot_be_read_leaves_the_others(
    built_in: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Path.glob

    def glob(self: Path, pattern: str) -> object:
        if self == tmp_path / "own":
            raise PermissionError(13, "Permission denied")
        return listed(self, pattern)

    monkeypatch.setattr(Path, "glob", glob)
    assert [p.name for p in list_presets(user_dir=tmp_path / "own")] == ["#a", "#b", "#z"]


def onetrainer_folder(tmp_path: Path) -> Path:
    """A `training_presets` as OneTrainer leaves it: built-in ones, own ones of several ages, and things beside them."""
    folder = tmp_path / "training_presets"
    (folder / "below.json").mkdir(parents=True)
    old = {"training_method": "LORA", "model_type": "STABLE_DIFFUSION_15", "epochs": 7}
    new = {"__version": 11, "training_method": "LORA", "epochs": 9, "what_is_this": 1}
    files = {"#sd 1.5": old, "#": new, "cat": old, "dog v2": new, ".hidden": old, "concepts": []}
    for name, tree in files.items():
        (folder / f"{name}.json").write_text(json.dumps(tree))
    (folder / "broken.json").write_text("{")
    (folder / "readme.txt").write_text("x")
    return folder


def test_the_presets_of_another_program_become_the_users_own(built_in: Path, tmp_path: Path) -> None:
    imported = import_presets(onetrainer_folder(tmp_path))
    assert [p.name for p in imported.presets] == ["cat", "dog v2"]
    assert [p for p in list_presets() if not p.is_built_in] == list(imported.presets)
    assert [p.load().config.training.epochs for p in imported.presets] == [7, 9]
    assert all(
        json.loads(p.path.read_text(encoding="utf-8"))["darkroom_version"] == NEWEST_DARKROOM for p in imported.presets
    )
    report = [(p.severity, str(p)) for p in imported.problems]
    assert ("info", "cat: imported.") in report
    left_out = [text for severity, text in report if severity == "warning" and "left out" in text]
    assert [text.partition(" ")[0] for text in left_out] == ["broken.json", "concepts.json"]
    assert any(text.startswith("dog v2: ") and "what_is_this" in text for _, text in report)


def test_importing_again_changes_nothing(built_in: Path, tmp_path: Path) -> None:
    folder = onetrainer_folder(tmp_path)
    first = import_presets(folder)
    before = {p.path: p.path.read_bytes() for p in first.presets}
    again = import_presets(folder)
    assert again.presets == first.presets
    assert "cat: already among your presets." in [str(p) for p in again.problems]
    assert {f: f.read_bytes() for f in user_presets_dir().iterdir()} == before


def test_importing_never_overwrites(built_in: Path, tmp_path: Path) -> None:
    mine = save_preset(Config.model_validate({"training": {"epochs": 3}}), "cat")
    (user_presets_dir() / "dog v2.json").mkdir()
    imported = import_presets(onetrainer_folder(tmp_path))
    assert [p.name for p in imported.presets] == ["cat 2", "dog v2 2"]
    assert mine.load().config.training.epochs == 3
    assert "cat: imported as cat 2." in [str(p) for p in imported.problems]


def test_a_folder_without_presets_gives_none(tmp_path: Path) -> None:
    assert import_presets(tmp_path / "nowhere").presets == ()
    assert not user_presets_dir().exists()


def test_a_preset_holds_its_lists_itself(built_in: Path, tmp_path: Path) -> None:
    folder = onetrainer_folder(tmp_path)
    (tmp_path / "training_concepts").mkdir()
    (tmp_path / "training_concepts" / "c.json").write_text(json.dumps([{"name": "cats", "path": "images"}]))
    tree = {"__version": 11, "training_method": "LORA", "concept_file_name": "training_concepts/c.json"}
    (folder / "cat.json").write_text(json.dumps(tree))
    cat = import_presets(folder).presets[0]
    assert [c.name for c in cat.load().config.concepts] == ["cats"]
    assert sorted(f.name for f in user_presets_dir().iterdir()) == ["cat.json", "dog v2.json"]
    assert import_presets(folder).presets[0] == cat
    assert [c.name for c in save_preset(cat.load().config, "other").load().config.concepts] == ["cats"]


def test_every_method_has_a_preset_for_the_diffusion_families() -> None:
    configs = [Preset(f.stem, f.parent.name, f).load().config for f in BUILT_IN if not f.stem.startswith("#demo")]
    found = {(c.model.family.name, c.training.method.name) for c in configs}
    others = {(name, "denoise") for name in FAMILIES if name not in ("sd", "sdxl")}
    others |= {(name, method) for name in ("z_image", "flux2_klein") for method in ("nft", "dgpo", "online_dpo")}
    assert found == {*((family, method) for family in ("sd", "sdxl") for method in METHODS), *others}


_WITH_TERMS = {
    *("anima", "krea2", "flux", "flux2", "flux3", "hidream", "hunyuan_image", "hunyuan_video", "ideogram4", "pixart"),
    *("qwen_image21", "sana", "sd3", "stable_cascade"),
}


@for_each([file for file in BUILT_IN if file.parent.name in _WITH_TERMS or " 9b " in file.stem], named=lambda f: f.stem)
def test_presets_of_models_with_terms_state_them(file: Path) -> None:
    """Such as that a model is not for commercial use: the presets of FLUX.1 dev only named its licence."""
    notes = Preset(file.stem, file.parent.name, file).load().config.general.notes
    assert re.search(
        r"commercial|research|revenue|Llama that of Meta|licen[cs]e,? (of|which|that)|employees|licence.*terms",
        notes,
        re.IGNORECASE,
    )
