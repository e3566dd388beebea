"""What is wanted, what is there, what is missing."""

import sys
import zipfile
from pathlib import Path

import pytest

from launcher import install, requirements
from launcher.environment import Environment
from launcher.requirements import UnmetRequirement
from tests.launcher import fake_pip
from tests.launcher.conftest import CONSTRAINTS, PROJECT, ROOT


def metadata(folder: Path, name: str, version: str, *requires: str) -> None:
    """Put a package's metadata into a folder."""
    fake_pip.install(name, version, folder=folder)
    lines = "".join(f"Requires-Dist: {line}\n" for line in requires)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{lines}\nRequires-Dist: not-a-header\n"
    (folder / f"{name}-{version}.dist-info" / "METADATA").write_text(text)


def missing(folder: Path, *wanted: str) -> list[UnmetRequirement]:
    return sorted(requirements.unmet_requirements(wanted, requirements.installed_packages([str(folder)])))


def test_a_wheel_is_of_its_own_package_and_not_of_a_copy_in_it(tmp_path: Path) -> None:
    """As in setuptools' wheel, which every torch needs."""
    with zipfile.ZipFile(tmp_path / "alpha-2-py3-none-any.whl", "w") as wheel:
        for folder, name in (("alpha/_vendor/beta-1", "beta"), ("alpha-2", "alpha")):
            wheel.writestr(f"{folder}.dist-info/METADATA", f"Name: {name}\nVersion: 2\nRequires-Dist: gamma\n")
    found = requirements.of_wheels(tmp_path)
    assert {name: package.requires for name, package in found.items()} == {"alpha": ("gamma",)}


def test_wanted_with_extras(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert requirements.project_requirements(tmp_path, ()) == ["alpha>=1,<2", "beta>=2"]
    assert requirements.project_requirements(tmp_path, ("ui", "dev", "none")) == [
        "alpha>=1,<2",
        "beta>=2",
        "gamma>=1",
        "delta>=1",
    ]


def test_tested_versions(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text(CONSTRAINTS)
    assert requirements.tested_versions(tmp_path)["alpha"] == "1.5"


def test_missing_and_wrong_versions(tmp_path: Path) -> None:
    metadata(tmp_path, "alpha", "1.0")
    assert missing(tmp_path, "alpha>=1", "Beta_x>2") == [UnmetRequirement("Beta_x>2", "beta-x", None)]
    assert missing(tmp_path, "alpha>=2") == [UnmetRequirement("alpha>=2", "alpha", "1.0")]


def test_what_the_installed_need_in_turn(tmp_path: Path) -> None:
    metadata(tmp_path, "alpha", "1.0", "Beta.X[fast]>=2 ; python_version >= '3'", "win; sys_platform == 'none'")
    metadata(tmp_path, "beta_x", "2.0rc1", "gamma; extra == 'fast'", "delta; extra == 'slow'", "alpha")
    assert missing(tmp_path, "alpha") == [
        UnmetRequirement("Beta.X[fast]>=2 ; python_version >= '3'", "beta-x", "2.0rc1")
    ]
    metadata(tmp_path, "beta_x", "2.1rc1", "gamma; extra == 'fast'", "delta; extra == 'slow'", "alpha")
    assert missing(tmp_path, "alpha") == [UnmetRequirement("gamma; extra == 'fast'", "gamma", None)]


def test_lines_of_others_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    metadata(tmp_path, "alpha", "1.0", "beta (((", "gamma")
    assert missing(tmp_path, "alpha") == [UnmetRequirement("gamma", "gamma", None)]
    with pytest.raises(ValueError, match=r"\(\(\("):
        missing(tmp_path, "beta (((")


def test_local_versions_meet_a_range(tmp_path: Path) -> None:
    metadata(tmp_path, "torch", "2.13.0+cpu")
    assert missing(tmp_path, "torch>=2.9,<3") == []


def test_without_any_pip_everything_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metadata(tmp_path, "alpha", "1.0")
    monkeypatch.setattr(requirements, "_parser", lambda: None)
    assert missing(tmp_path, "alpha[x]>=1") == [UnmetRequirement("alpha[x]>=1", "alpha", None)]


def test_agrees_with_importlib_metadata() -> None:
    """The same packages and versions as the standard library finds in this very environment."""
    from importlib.metadata import distributions

    ours = {name: package.version for name, package in requirements.installed_packages().items()}
    theirs: dict[str, str] = {}
    for found in distributions():
        theirs.setdefault(requirements.normalise(found.name), found.version)
    assert ours == theirs


@pytest.mark.parametrize("harm", ["INSTALLER", "RECORD", "file", "size"])
def test_packages_in_pieces(tmp_path: Path, harm: str) -> None:
    fake_pip.install("alpha", "1.0", folder=tmp_path)
    fake_pip.install("beta", "1.0", folder=tmp_path)
    assert requirements.damaged_packages(requirements.installed_packages([str(tmp_path)])) == []
    if harm == "file":
        (tmp_path / "alpha.py").unlink()
    elif harm == "size":
        (tmp_path / "alpha.py").write_text("# longer than before")
    else:
        (tmp_path / "alpha-1.0.dist-info" / harm).unlink()
    assert requirements.damaged_packages(requirements.installed_packages([str(tmp_path)])) == ["alpha"]


def test_pins_keep_what_stays(tmp_path: Path) -> None:
    fake_pip.install("torch", "2.10.0+cu128", folder=tmp_path)
    fake_pip.install("theirs", "unknown", folder=tmp_path)  # pip would choke on it
    present = requirements.installed_packages([str(tmp_path)])
    assert requirements.pins({"torch": "2.13.0", "alpha": "1.5"}, present, ["torch", "theirs", "gone"]) == [
        "alpha==1.5",
        "torch==2.10.0+cu128",
    ]


def test_constraints_hold_a_tested_version_of_every_dependency() -> None:
    """Each line of pyproject.toml has its version in constraints.txt, inside its range."""
    import tomllib

    from packaging.requirements import Requirement

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    tested = requirements.tested_versions(ROOT)
    for line in requirements.project_requirements(ROOT, extras):
        asked = Requirement(line)
        assert asked.specifier.contains(tested[requirements.normalise(asked.name)]), line
    assert "torchvision" not in tested
    assert not [version for version in tested.values() if "+" in version]


def test_the_launcher_needs_the_standard_library_alone() -> None:
    import ast

    for path in (ROOT / "launcher").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [str(node.module)]
            for name in names:
                top = name.partition(".")[0]
                assert top == "launcher" or top in sys.stdlib_module_names, f"{path.name}: {name}"


def test_met_requirements_are_compared_again_only_in_a_changed_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Comparing them took more than half of the time of a launch."""
    compared: list[tuple[str, ...]] = []
    monkeypatch.setattr(requirements, "unmet_requirements", lambda wanted, _present: compared.append(tuple(wanted)))
    monkeypatch.syspath_prepend(str(tmp_path / "packages"))
    (tmp_path / "packages").mkdir()
    metadata(tmp_path / "packages", "alpha", "1.0")
    job = install.Job(tmp_path, Environment("venv", tmp_path), ["alpha>=1"], {})
    install.ensure(job)
    install.ensure(job)
    assert compared == [("alpha>=1",)]
    install.ensure(job._replace(wanted=["alpha>=1", "beta"]))
    install.ensure(job)  # the record has the requirements of both
    assert len(compared) == 2
    metadata(tmp_path / "packages", "alpha", "2.0")
    install.ensure(job)
    assert len(compared) == 3


def test_the_state_of_an_environment_is_known_with_a_link_to_what_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as of a package that was installed from a folder which was removed since."""
    gone = tmp_path / "mine.egg-info"
    monkeypatch.setattr(requirements, "_metadata_folders", lambda _folder: [gone])
    assert str(gone) in requirements.environment_state()
