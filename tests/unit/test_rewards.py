"""Rewards without a model: the records, the settings, problems before a run, user code, sums and losses."""

from __future__ import annotations

import hashlib
import importlib
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modules.config.codec import decode
from modules.config.rules import RULES
from modules.config.rules.optimizers import fused_backward_pass
from modules.config.rules.rewards import method_settings, reward_models
from modules.config.schema import Config
from modules.formats.published_files import is_repository
from modules.objectives.policy_losses import num_scored, reward_loss, reward_losses
from modules.rewards import registry
from modules.rewards.composite import CompositeReward, RewardModel, build_rewards
from modules.rewards.in_use import held_out_scorer, trained_scorers
from modules.rewards.measures import parse_colour
from modules.rewards.models.ocr import edit_distance, quoted_text, text_score
from modules.rewards.models.user_code import load_user_reward
from modules.rewards.problems import problems_of_rewards
from modules.rewards.protocol import RewardContext, files_of
from modules.rewards.registry import REWARDS, hold_out_labels, reward_labels
from modules.rewards.settings import Scorer, wanted_files
from modules.rewards.user_code_file import approved_code, hash_of, split_reference
from modules.sampling.step_selection import Truncation, truncation_of
from modules.settings.edit import set_path
from modules.system.devices import CPU
from modules.system.errors import DarkroomError
from modules.system.problem import Problem
from modules.system.secrets import HubAccess
from modules.system.seeds import derive_seed
from tests.unit.strategies import few

IMAGES = torch.rand(3, 3, 8, 8, generator=torch.Generator().manual_seed(1))
PROMPTS = ["a", "b", "c"]
NAN = float("nan")


# ---- the records


@pytest.mark.parametrize("kind", REWARDS)
def test_each_record_names_an_existing_factory(kind: str) -> None:
    module, _, function = REWARDS[kind].factory.partition(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert REWARDS[kind].name == kind
    assert bool(REWARDS[kind].files) is bool(REWARDS[kind].licence and REWARDS[kind].source)


def test_records_settings_and_preflight_need_no_torch() -> None:
    modules = ("registry", "settings", "problems", "measures", "user_code_file")
    code = f"import sys; {'; '.join(f'import modules.rewards.{m}' for m in modules)}; "
    code += "import modules.config.rules, modules.sampling.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_settings_offer_every_reward() -> None:
    config = decoded(scorers=[{"kind": kind} for kind in reward_labels()])
    assert [s.kind for s in config.reward.models] == list(REWARDS)
    assert decoded(held_out_reward="pickscore").training.method.held_out_reward == "pickscore"  # type: ignore[union-attr]
    assert list(hold_out_labels()) == ["none", *REWARDS]
    assert [p.path for p in decode(tree(scorers=[{"kind": "taste"}])).problems] == ["reward.models.0.kind"]


# ---- which rewards are trained on


def test_the_held_out_reward_is_not_trained_on() -> None:
    light, red, off = Scorer(kind="brightness"), Scorer(kind="colour_target", weight=2.0), Scorer(enabled=False)
    idle = Scorer(kind="contrast", weight=0.0)
    scorers = (light, red, off, idle)
    assert trained_scorers(scorers, "none") == (light, red)
    assert trained_scorers(scorers, "brightness") == (red,)
    assert held_out_scorer(scorers, "none") is None
    assert held_out_scorer(scorers, "colour_target") is red  # with its own colour
    assert held_out_scorer(scorers, "symmetry") == Scorer(kind="symmetry")


# ---- the rules


def tree(*, scorers: Sequence[dict[str, Any]] = ({"kind": "brightness"},), **method: Any) -> dict[str, Any]:
    return {
        "darkroom_version": 7,
        "training": {"method": {"name": "alignprop", **method}},
        "reward": {"models": list(scorers)},
    }


def decoded(**options: Any) -> Config:
    loaded = decode(tree(**options))
    assert not loaded.problems, loaded.problems
    return loaded.config


def found(config: Config) -> list[tuple[str, str]]:
    return [(p.path, p.severity) for rule in (reward_models, method_settings) for p in rule(config)]


@pytest.mark.parametrize(
    ("probability", "masks", "expected"),
    [
        (1.0, True, "Masked training has no effect"),
        (0.25, True, "Masked training only affects the denoising steps, 75% of all."),
        (0.0, True, None),
        (1.0, False, None),
    ],
)
def test_masks_that_the_method_ignores_are_a_warning(probability: float, masks: bool, expected: str | None) -> None:
    raw = {**tree(probability=probability), "masks": {"enabled": masks}}
    problems = [p for rule in RULES for p in rule(decode(raw).config) if p.path == "masks.enabled"]
    assert [p.severity for p in problems] == (["warning"] if expected else [])
    assert all(
        "AlignProp trains on images that it samples" in p.message and str(expected) in p.message for p in problems
    )
    denoising = decode({"darkroom_version": 7, "masks": {"enabled": True}}).config
    assert not [p for rule in RULES for p in rule(denoising) if p.path == "masks.enabled"]


def test_a_sound_config_breaks_no_rule() -> None:
    assert found(decoded(held_out_reward="contrast")) == []
    assert found(Config()) == []


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"scorers": []}, "reward.models"),
        ({"scorers": [{"kind": "brightness", "enabled": False}]}, "reward.models"),
        ({"scorers": [{"kind": "brightness", "weight": 0}]}, "reward.models"),
        ({"held_out_reward": "brightness"}, "reward.models"),
        ({"scorers": [{"kind": "compressibility"}]}, "reward.models.0.kind"),
        ({"scorers": [{"kind": "colour_target", "colour": "red"}]}, "reward.models.0.colour"),
        ({"scorers": [{}, {"kind": "user_code", "file": "mine.py"}]}, "reward.models.1.file"),
        ({"held_out_reward": "user_code"}, "training.method.held_out_reward"),
        ({"steps": 4, "backprop_steps": 5}, "training.method.backprop_steps"),
        ({"backprop_steps": 3, "backprop_steps_min": 4}, "training.method.backprop_steps_min"),
        ({"name": "ddpo", "size": "500"}, "training.method.size"),
        ({"name": "ddpo", "size": "500x512"}, "training.method.size"),
        ({"name": "grpo", "size": "16x512"}, "training.method.size"),
        ({"name": "ddpo", "tracker_size": 8}, "training.method.tracker_min_count"),
        ({"name": "grpo", "steps": 4, "timesteps": "window"}, "training.method.window_size"),
        ({"name": "grpo", "best_of": 1}, "training.method.best_of"),
        ({"name": "grpo", "best_of": 9}, "training.method.best_of"),
    ],
)
def test_each_rule_names_its_field(options: dict[str, Any], path: str) -> None:
    assert found(decoded(**options)) == [(path, "error")]


@pytest.mark.parametrize("name", ["ddpo", "grpo"])
def test_policy_gradients_forbid_dropout_and_a_fused_backward_pass(name: str) -> None:
    config = decoded(name=name, steps=5, size="512x768")
    assert found(config) == []
    dropout = set_path(config, "adapter.dropout", 0.1)[0]
    assert found(dropout) == [("adapter.dropout", "error")]
    assert found(set_path(dropout, "training.trains", "full")[0]) == []
    fused = set_path(config, "training.optimizer", {"name": "adafactor", "fused_back_pass": True})[0]
    assert "training.optimizer" in [p.path for p in fused_backward_pass(fused)]
    assert found(set_path(decoded(), "adapter.dropout", 0.1)[0]) == []  # AlignProp


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("grpo", "group_size", 1),
        ("ddpo", "steps", 1),
        ("grpo", "eta", 0.0),
        ("ddpo", "clip_range", 0.0),
        ("ddpo", "clip_range", 0.9),
        ("grpo", "timestep_share", 0.0),
    ],
)
def test_values_out_of_range_are_refused(name: str, path: str, value: float) -> None:
    assert [p.path for p in decode(tree(name=name, **{path: value})).problems] == [f"training.method.{path}"]


def test_the_minimum_of_steps_does_not_matter_where_their_number_is_fixed() -> None:
    assert found(decoded(gradient_truncation="fixed", backprop_steps=2, backprop_steps_min=9)) == []


def test_a_reward_without_gradient_may_only_be_held_out(monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    blind = replace(REWARDS["symmetry"], is_differentiable=False)
    monkeypatch.setattr(registry, "REWARDS", {**REWARDS, "symmetry": blind})
    monkeypatch.setattr("modules.config.rules.rewards.REWARDS", registry.REWARDS)
    scorers = [{"kind": "brightness"}, {"kind": "symmetry"}]
    assert found(decoded(scorers=scorers)) == [("reward.models.1.kind", "error")]
    assert found(decoded(scorers=scorers, held_out_reward="symmetry")) == []


# ---- problems before a run


def problems_of(scorers: Sequence[Scorer], tmp_path: Path, **options: Any) -> list[Problem]:
    return list(problems_of_rewards(scorers, **{"offline": True, "hub_cache_dir": str(tmp_path / "hub"), **options}))


def in_hub_cache(tmp_path: Path, repo: str, *names: str) -> Path:
    """Put empty files where a download would have left them."""
    folder = tmp_path / "hub" / f"models--{repo.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc")
    snapshot = folder / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    for name in names:
        (snapshot / name).touch()
    return snapshot


def test_rewards_without_files_need_nothing(tmp_path: Path) -> None:
    is_plain = {
        kind: not (spec.files or spec.packages or spec.runs_code or spec.client) for kind, spec in REWARDS.items()
    }
    plain = [Scorer(kind=kind) for kind in REWARDS if is_plain[kind]]
    assert len(plain) == 7
    assert problems_of(plain, tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("pickscore", ["config.json and model.safetensors of yuvalkirstain/PickScore_v1", "3.9 GB"]),
        ("clip_score", ["openai/clip-vit-large-patch14", "1.7 GB"]),
        ("hps", ["HPS_v2_compressed.pt of xswu/HPSv2", "2.0 GB"]),
        ("aesthetic", ["aesthetic-model.pth of trl-lib/ddpo-aesthetic-predictor", "3.7 MB", "offline mode is on"]),
    ],
)
def test_missing_files_are_named_with_their_repository(kind: str, words: list[str], tmp_path: Path) -> None:
    first, *more = problems_of([Scorer(kind=kind)], tmp_path)
    assert (first.path, first.severity) == ("reward.models.0.file", "error")
    assert all(word in first.message for word in words), first.message
    assert [p.path for p in more] == (["reward.models.0.clip_model"] if kind == "aesthetic" else [])
    with_network = problems_of([Scorer(kind=kind)], tmp_path, offline=False)
    assert {p.severity for p in with_network} == {"info"}
    assert "downloaded when the run starts" in with_network[0].message


def test_weights_without_a_pinned_repository_have_to_be_named(tmp_path: Path) -> None:
    [missing] = problems_of([Scorer(kind="unified_reward")], tmp_path, offline=False)
    assert (missing.path, missing.severity) == ("reward.models.0.file", "error")
    assert missing.message == "UnifiedReward: No weights are named."
    assert "config.json, generation_config.json, tokenizer.json and model.safetensors" in missing.advice
    named = Scorer(kind="unified_reward", file="someone/reward")
    [download] = problems_of([named], tmp_path, offline=False)
    assert "of someone/reward at Hugging Face" in download.message
    snapshot = in_hub_cache(tmp_path, "someone/reward", "config.json", "generation_config.json", "tokenizer.json")
    (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-00001-of-00001.safetensors"}}')
    assert problems_of([named], tmp_path, offline=False) == [download], "a download that was stopped"
    (snapshot / "model-00001-of-00001.safetensors").touch()
    assert problems_of([named], tmp_path) == []


def test_a_small_download_has_a_size(tmp_path: Path) -> None:
    """The vocabulary of ImageReward was "about 0 MB"."""
    assert not [p.message for p in problems_of([Scorer(kind="image_reward")], tmp_path) if "about 0 MB" in p.message]


def test_downloaded_files_are_found(tmp_path: Path) -> None:
    in_hub_cache(tmp_path, "openai/clip-vit-large-patch14", "config.json", "model.safetensors")
    assert problems_of([Scorer(kind="clip_score")], tmp_path) == []
    in_hub_cache(tmp_path, "yuvalkirstain/PickScore_v1", "config.json")
    assert len(problems_of([Scorer(kind="pickscore")], tmp_path)) == 1
    in_hub_cache(tmp_path, "someone/finer-clip", "config.json", "model.safetensors")
    assert problems_of([Scorer(kind="pickscore", file="someone/finer-clip")], tmp_path) == []
    other = problems_of([Scorer(kind="pickscore", file="someone/other-clip")], tmp_path)
    assert "someone/other-clip" in other[0].message


def test_own_files_that_are_not_there_are_errors_with_or_without_network(tmp_path: Path) -> None:
    (tmp_path / "clip").mkdir()
    (tmp_path / "clip" / "config.json").touch()
    scorers = [Scorer(kind="hps", file=str(tmp_path / "no.pt")), Scorer(kind="clip_score", file=str(tmp_path / "clip"))]
    for offline in (True, False):
        hps, clip = problems_of(scorers, tmp_path, offline=offline)
        assert (hps.path, hps.severity, clip.path, clip.severity) == (
            "reward.models.0.file", "error", "reward.models.1.file", "error",
        )  # fmt: skip
        assert "no.pt" in hps.message
        assert "xswu/HPSv2" in hps.advice
        assert "model.safetensors is missing" in clip.message


def test_disabled_rewards_need_nothing(tmp_path: Path) -> None:
    idle = [Scorer(kind="hps", enabled=False), Scorer(kind="pickscore", weight=0), Scorer(kind="brightness")]
    assert problems_of(idle, tmp_path) == []
    assert problems_of(idle, tmp_path, held_out_reward="pickscore")[0].path == "reward.models.1.file"
    assert problems_of(idle[2:], tmp_path, held_out_reward="pickscore")[0].path == "training.method.held_out_reward"


def test_a_missing_file_is_also_an_error_on_loading(tmp_path: Path) -> None:
    context = RewardContext(CPU, offline=True, hub_cache_dir=str(tmp_path))
    with pytest.raises(DarkroomError, match=r"HPS_v2_compressed\.pt of xswu/HPSv2 at Hugging Face"):
        build_rewards([Scorer(kind="hps")], context)
    with pytest.raises(DarkroomError, match="No reward model"):
        build_rewards([], context)


def test_missing_files_are_downloaded_before_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, list[str], str | None]] = []

    def fetch(repo: str, *, allow_patterns: list[str], token: str | None, **_: Any) -> str:
        asked.append((repo, allow_patterns, token))
        return str(in_hub_cache(tmp_path, repo, *allow_patterns))

    monkeypatch.setattr("huggingface_hub.snapshot_download", fetch)
    context = RewardContext(CPU, hub_cache_dir=str(tmp_path / "hub"), hub=HubAccess("hf_token"))
    files = files_of(Scorer(kind="aesthetic"), context)
    assert files["file"].name == "aesthetic-model.pth"
    assert (files["clip_model"] / "model.safetensors").is_file()
    assert [repo for repo, _, _ in asked] == ["trl-lib/ddpo-aesthetic-predictor", "openai/clip-vit-large-patch14"]
    several = ["model.safetensors.index.json", "model-*.safetensors"]
    whole = ["config.json", "model.safetensors", *several]
    assert [names for _, names, _ in asked] == [["aesthetic-model.pth"], whole]
    assert {token for _, _, token in asked} == {"hf_token"}
    assert files_of(Scorer(kind="aesthetic"), context) == files  # from the cache now
    assert len(asked) == 2


def test_a_failed_download_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = RewardContext(CPU, hub_cache_dir=str(tmp_path / "hub"))

    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(DarkroomError, match=r"xswu/HPSv2 .* could not be downloaded: no route to host"):
        files_of(Scorer(kind="hps"), context)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(DarkroomError, match=r"a/b does not contain config\.json"):
        files_of(Scorer(kind="clip_score", file="a/b"), context)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("openai/clip-vit-large-patch14", True), ("a/b", True), ("clip", False), ("/models/clip", False),
        ("./clip", False), ("~/clip", False), ("models/head.pth", False), ("a/b/c", False), ("C:\\a/b", False),
        ("", False), ("/", False),
    ],
)  # fmt: skip
def test_names_of_repositories_are_recognised(name: str, is_one: bool) -> None:
    assert is_repository(name) is is_one
    own = next(iter(wanted_files(Scorer(kind="pickscore", file=name)))).user_path
    assert (own is None) is (is_one or not name)


# ---- code of the user's own


CODE = "import torch\n\ndef score(images, prompts):\n    return images.mean(dim=(1, 2, 3)) + len(prompts[0])\n"


def written(tmp_path: Path, code: str = CODE) -> Path:
    file = tmp_path / "mine.py"
    file.write_text(code)
    return file


def test_code_runs_only_where_that_very_file_was_approved(tmp_path: Path) -> None:
    file = written(tmp_path, f"from pathlib import Path\nPath({str(tmp_path / 'was run')!r}).touch()\n{CODE}")
    assert hash_of(file) == hashlib.sha256(file.read_bytes()).hexdigest()
    with pytest.raises(DarkroomError, match="not approved") as caught:
        approved_code(file, "score", {hashlib.sha256(CODE.encode()).hexdigest()})
    assert "--allow-code" in caught.value.advice
    assert not (tmp_path / "was run").exists()
    approved = {hash_of(file)}
    reward = load_user_reward(approved_code(file, "score", approved), file, "score")
    assert (tmp_path / "was run").exists()
    torch.testing.assert_close(reward(IMAGES, PROMPTS), IMAGES.flatten(1).mean(1) + 1)
    file.write_text(file.read_text() + "\n# changed\n")
    with pytest.raises(DarkroomError, match="not approved"):
        approved_code(file, "score", approved)


def test_preflight_requires_the_approval_and_warns_where_it_exists(tmp_path: Path) -> None:
    file = written(tmp_path)
    scorers = [Scorer(kind="brightness"), Scorer(kind="user_code", file=f"{file}:score")]
    [refusal] = problems_of(scorers, tmp_path)
    assert (refusal.path, refusal.severity) == ("reward.models.1.file", "error")
    [warning] = problems_of(scorers, tmp_path, approved_hashes={hash_of(file)})
    assert (warning.path, warning.severity) == ("reward.models.1.file", "warning")
    assert "runs as a program" in warning.message
    [missing] = problems_of([Scorer(kind="user_code", file=f"{tmp_path / 'none.py'}:score")], tmp_path)
    assert "cannot be read" in missing.message


@pytest.mark.parametrize("reference", ["", "mine.py", "mine.py:", "mine.txt:score", ":score", "mine.py:1st", "a:b"])
def test_a_reference_to_no_function_is_refused(reference: str) -> None:
    with pytest.raises(DarkroomError, match="is not a function" if reference else "No Python file"):
        split_reference(reference)


def test_a_reference_may_contain_a_drive(tmp_path: Path) -> None:
    assert split_reference(f"{tmp_path}/mine.py:score") == (tmp_path / "mine.py", "score")
    assert split_reference("C:\\rewards\\mine.py:score")[1] == "score"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("def score(:", "failed in line 1: invalid syntax"),
        ("raise ValueError('no')", "failed in line 1: no"),
        ("score = 3", "has no function score"),
        ("def score(p, t):\n    return p.mean()", r"returned \(\); expected a tensor of shape \(3,\)"),
        ("def score(p, t):\n    return [1.0, 2.0, 3.0]", "returned something that is not a tensor; expected"),
        ("def score(p, t):\n    return 1 / 0", "failed in line 2: division by zero"),
        ("def score(p, t):\n    return p.detach().mean(dim=(1, 2, 3))", "cannot be traced back to the images"),
    ],
)
def test_errors_in_user_code_are_reported(tmp_path: Path, code: str, words: str) -> None:
    file = written(tmp_path, code)
    with pytest.raises(DarkroomError, match=words):
        load_user_reward(file.read_bytes(), file, "score")(IMAGES.clone().requires_grad_(), PROMPTS)


BLIND = "\n\nscore.is_differentiable = False\n"


@pytest.mark.parametrize(
    "body",
    [
        "return [0.25, None, float('nan')]",
        "import numpy\n    return numpy.array([0.25, numpy.nan, numpy.nan])",
        "return (0.25, None, None)",
        "import torch\n    return torch.tensor([0.25, torch.nan, torch.nan], dtype=torch.float64)",
        # Images arrive without gradient on the CPU, so that numpy and Pillow can read them at once.
        "import numpy\n    assert images.numpy().shape == (3, 3, 8, 8)\n    return [0.25, None, None]",
        "assert isinstance(prompts, list)\n    return [0.25, None, None]",  # also where the caller has a tuple
        "return [0.25, float('inf'), float('-inf')]",  # masked by the composite
    ],
)
def test_a_function_without_gradient_may_return_lists_and_miss_scores(tmp_path: Path, body: str) -> None:
    file = written(tmp_path, f"def score(images, prompts):\n    {body}{BLIND}")
    mine = load_user_reward(file.read_bytes(), file, "score")
    composite = CompositeReward((RewardModel("mine", mine, 2.0), RewardModel("light", Says((1.0, 2.0, NAN)), 1.0)))
    scores = composite(IMAGES.clone().requires_grad_(), tuple(PROMPTS))
    assert scores.by_name["mine"].isnan().tolist() == [False, True, True]
    assert scores.total_B[:2].tolist() == [1.5, 2.0]
    assert scores.total_B[2].isnan()
    assert scores.complete_totals.isnan().tolist() == [False, True, True]  # the second lacks one of two scores
    assert not mine.is_differentiable


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("return 3.0", "returned something other than one number per image"),
        ("return ['a', 'b', 'c']", "returned something other than one number per image"),
        ("return [1.0, 2.0]", "returned 2 numbers for 3 images"),
        ("return images.numpy()", "returned something other than one number per image"),
        ("raise SystemExit(3)", "failed in line 2: it ended the program"),
    ],
)
def test_errors_of_a_function_without_gradient_are_reported(tmp_path: Path, code: str, words: str) -> None:
    file = written(tmp_path, f"def score(images, prompts):\n    {code}{BLIND}")
    with pytest.raises(DarkroomError, match=words):
        load_user_reward(file.read_bytes(), file, "score")(IMAGES, PROMPTS)


def test_code_may_contain_dataclasses(tmp_path: Path) -> None:
    """A dataclass with annotations from the future finds its module by name."""
    code = (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n@dataclass\nclass Scale:\n"
        "    factor: float = 2.0\n\ndef score(images, prompts):\n"
        "    return images.mean(dim=(1, 2, 3)) * Scale().factor\n\nscore.is_differentiable = False\n"
    )
    file = written(tmp_path, code)
    reward = load_user_reward(file.read_bytes(), file, "score")
    torch.testing.assert_close(reward(IMAGES, PROMPTS), 2 * IMAGES.flatten(1).mean(1))
    composite = CompositeReward((RewardModel("light", Says((1.0, 2.0, 3.0)), 1.0), RewardModel("mine", reward, 1.0)))
    assert not composite.is_differentiable
    with pytest.raises(DarkroomError, match="a gradient to the images, which mine does not have"):
        composite.require_gradient()


# ---- text


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ('a sign that says "Open now"', "Open now"),
        ("a shop, \u201cFresh\u201d and \u201cbread\u201d", "Fresh bread"),
        ("\u201eHallo\u201c on a wall", "Hallo"),
        ("a wall with \u00ab Bonjour \u00bb", "Bonjour"),
        ("the dog's 'bone'", ""),
        ('a 5" nail', ""),
        ('an empty ""', ""),
    ],
)
def test_the_quoted_text_of_a_prompt(prompt: str, text: str) -> None:
    assert quoted_text(prompt) == text


def test_the_text_score_by_hand() -> None:
    assert text_score("Open now", "OPENNOW") == text_score("open", "we are open today") == 1.0
    assert text_score("open", "0pen") == 0.75
    assert text_score("open", "") == text_score("open", "something quite different") == 0.0
    assert edit_distance("kitten", "sitting") == 3
    assert edit_distance("", "abc") == edit_distance("abc", "") == 3


def test_a_missing_package_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.util

    from modules.rewards.models.ocr import load_reader

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "rapidocr", None)
    for scorers, held_out, path in (
        ([Scorer(kind="brightness"), Scorer(kind="ocr")], "none", "reward.models.1.kind"),
        ([Scorer(kind="brightness")], "ocr", "training.method.held_out_reward"),
    ):
        first, second = problems_of(scorers, tmp_path, held_out_reward=held_out)
        assert (first.path, first.severity) == (path, "error")
        assert first.message == "Readable text (OCR) needs the package rapidocr, which is not installed."
        assert first.advice == "Install rapidocr (python -m trainer install rapidocr), or choose another reward model."
        assert "onnxruntime" in second.message
    with pytest.raises(DarkroomError, match="needs the package rapidocr, which cannot be loaded") as caught:
        load_reader()
    assert "trainer install rapidocr" in caught.value.advice


# ---- several reward models


@dataclass(frozen=True)
class Says:
    """A reward model with constant scores."""

    ratings: tuple[float, ...]
    is_differentiable: bool = True

    def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        return torch.tensor(self.ratings)


def test_the_sum_is_weighted_and_skips_missing_scores() -> None:
    composite = CompositeReward(
        (RewardModel("a", Says((1.0, 2.0, NAN)), 2.0), RewardModel("b", Says((10.0, NAN, NAN)), 0.5))
    )
    scores = composite(IMAGES, PROMPTS)
    assert scores.total_B[:2].tolist() == [7.0, 4.0]
    assert scores.total_B[2].isnan()
    assert scores.by_name["a"][:2].tolist() == [1.0, 2.0]  # not weighted
    assert composite.names == ("a", "b")
    assert composite.is_differentiable
    composite.require_gradient()


def test_rewards_of_one_kind_have_unique_names() -> None:
    red, blue, light = (
        Scorer(kind="colour_target", colour="#ff0000"), Scorer(kind="colour_target", colour="#0000ff", weight=3.0),
        Scorer(kind="brightness"),
    )  # fmt: skip
    composite = build_rewards([red, light, blue], RewardContext(CPU))
    assert composite.names == ("colour_target", "brightness", "colour_target_2")
    scores = composite(IMAGES, PROMPTS)
    parts = [scores.by_name[n] * w for n, w in zip(composite.names, (1.0, 1.0, 3.0), strict=True)]
    torch.testing.assert_close(scores.total_B, sum(parts))
    assert not torch.equal(scores.by_name["colour_target"], scores.by_name["colour_target_2"])


def test_no_gradient_comes_from_an_image_without_score() -> None:
    @dataclass(frozen=True)
    class Half:
        is_differentiable: bool = True

        def __call__(self, images_B3PP: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
            means = images_B3PP.flatten(1).mean(dim=1)
            return torch.where(torch.tensor([True, False, True]), means, NAN)

    images = IMAGES.clone().requires_grad_()
    total = CompositeReward((RewardModel("half", Half(), 1.0),))(images, PROMPTS).total_B
    reward_loss(total, loss="mean", target=0.0, weight=1.0).backward()
    assert images.grad is not None
    assert torch.isfinite(images.grad).all()
    assert [bool(g.any()) for g in images.grad] == [True, False, True]
    torch.testing.assert_close(images.grad[0], torch.full((3, 8, 8), -1 / 192 / 2))  # a mean over two, not three


# ---- losses


def test_losses_by_hand() -> None:
    rewards = torch.tensor([0.5, 1.0, 2.0])
    assert reward_losses(rewards, loss="mean", target=9.0).tolist() == [-0.5, -1.0, -2.0]
    assert reward_losses(rewards, loss="target", target=1.0).tolist() == [0.5, 0.0, 1.0]
    assert reward_losses(rewards, loss="hinge", target=1.0).tolist() == [0.5, 0.0, 0.0]
    assert reward_losses(rewards.bfloat16(), loss="mean", target=0.0).dtype == torch.float32
    with pytest.raises(ValueError, match="'median'"):
        reward_losses(rewards, loss="median", target=0.0)


@pytest.mark.parametrize("loss", ["mean", "target", "hinge"])
def test_samples_without_a_score_do_not_count(loss: str) -> None:
    some = torch.tensor([0.5, NAN, 2.0], requires_grad=True)
    value = reward_loss(some, loss=loss, target=3.0, weight=0.5)
    value.backward()
    expected = 0.5 * reward_losses(torch.tensor([0.5, 2.0]), loss=loss, target=3.0).mean()
    torch.testing.assert_close(value.detach(), expected)
    assert some.grad is not None
    assert some.grad.tolist() == [-0.25, 0.0, -0.25]
    assert num_scored(some) == 2


def test_a_batch_without_scores_has_zero_loss_with_a_graph() -> None:
    none = torch.full((2,), NAN, requires_grad=True)
    value = reward_loss(none, loss="target", target=3.0, weight=0.5)
    value.backward()
    assert value.item() == 0.0
    assert none.grad is not None
    assert none.grad.tolist() == [0.0, 0.0]
    assert num_scored(none) == 0


def test_a_hinge_that_is_reached_gives_no_gradient() -> None:
    rewards = torch.tensor([5.0, 6.0], requires_grad=True)
    reward_loss(rewards, loss="hinge", target=4.0, weight=1.0).backward()
    assert rewards.grad is not None
    assert not rewards.grad.any()


# ---- gradient truncation


@few
@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 2**63 - 1))
def test_the_random_number_of_steps_is_within_bounds_and_depends_on_the_seed_only(
    lowest: int, more: int, seed: int
) -> None:
    truncation = Truncation(lowest, lowest + more)
    assert lowest <= truncation.draw(seed) <= lowest + more
    assert truncation.draw(seed) == Truncation(lowest, lowest + more).draw(seed)


def test_the_number_of_steps_is_uniform_including_both_bounds() -> None:
    counts = Counter(Truncation(2, 6).draw(derive_seed(1, "truncation", step, 0)) for step in range(5000))
    assert sorted(counts) == [2, 3, 4, 5, 6]
    assert all(900 < n < 1100 for n in counts.values())


@pytest.mark.parametrize(("lowest", "highest"), [(0, 3), (-1, 1), (4, 3)])
def test_invalid_bounds_are_refused(lowest: int, highest: int) -> None:
    with pytest.raises(ValueError, match="are not a range"):
        Truncation(lowest, highest)


def test_settings_mean_a_fixed_number_or_a_range() -> None:
    assert truncation_of("fixed", backprop_steps=4, backprop_steps_min=2) == Truncation(4, 4)
    assert truncation_of("uniform", backprop_steps=4, backprop_steps_min=2) == Truncation(2, 4)


# ---- colours


def test_colours_are_parsed() -> None:
    assert parse_colour("#ff8000") == (1.0, 128 / 255, 0.0)
    assert parse_colour(" 0000FF ") == (0.0, 0.0, 1.0)
    for text in ("", "red", "#fff", "#gg0000", "#ff00000"):
        with pytest.raises(DarkroomError, match="not a valid colour"):
            parse_colour(text)


def test_out_of_memory_in_user_code_is_not_the_functions_error(tmp_path: Path) -> None:
    file = tmp_path / "rewards.py"
    file.write_text("import torch\ndef score(p, t):\n    raise torch.OutOfMemoryError('none left')")
    with pytest.raises(torch.OutOfMemoryError):
        load_user_reward(file.read_bytes(), file, "score")(IMAGES, PROMPTS)
