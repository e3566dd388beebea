"""The samples as a table, where its cells are, two compared, stars, and the model of a step."""

from __future__ import annotations

from pathlib import Path

from trainer.events import ModelSaved, SampleReady
from ui.features.run.sample_grid import SampleTable
from ui.features.run.sample_viewer import Wipe
from ui.features.run.samples import STARS_FILE, name_of, read_stars, write_stars
from ui.features.run.step_model import StepModel, model_of_step
from ui.widgets.grid_layout import GridLayout


def sample(step: int, index: int = 0, *, is_without_ema: bool = False) -> SampleReady:
    return SampleReady(step, index, f"prompt {index}", f"/run/{index}-{step}-{is_without_ema}.png", is_without_ema)


TABLE = SampleTable((sample(10), sample(0), sample(0, 1), sample(20), sample(20, 1), sample(20, is_without_ema=True)))


def test_rows_are_prompts_and_columns_steps() -> None:
    assert TABLE.steps == (0, 10, 20)
    assert TABLE.rows == ((0, False), (0, True), (1, False))
    assert [TABLE.title(row) for row in range(3)] == ["prompt 0", "prompt 0 (without EMA)", "prompt 1"]
    assert TABLE.at(0, 1) == sample(10)
    assert TABLE.at(2, 1) is None
    assert TABLE.place_of(sample(20, 1)) == (2, 2)
    assert SampleTable().steps == ()


def test_the_arrow_keys_pass_over_gaps_and_stop_at_the_edge() -> None:
    assert TABLE.move((2, 0), 0, 1) == (2, 2)
    assert TABLE.move((0, 0), 0, -1) == (0, 0)
    assert TABLE.move((0, 2), 1, 0) == (1, 2)
    assert TABLE.move((0, 0), 1, 0) == (2, 0)
    assert TABLE.move((0, 0), 0, 0) == (0, 0)


def test_a_sample_is_first_compared_with_the_first_of_its_prompt() -> None:
    assert TABLE.before((0, 2)) == (0, 0)
    assert TABLE.before((0, 0)) == (0, 1)
    assert TABLE.before((1, 2)) == (1, 2)  # it has no other


def test_where_the_cells_are() -> None:
    grid = GridLayout(12, 4, cell_width=100, cell_height=135, gap=10, live_top=20, live_px=100)
    assert (grid.width, grid.height) == (430, 435)
    assert grid.corner(6) == (220, 145)
    assert grid.at(225, 170) == 6
    assert grid.at(215, 170) is None  # between two
    assert grid.at(225, 150) is None  # the title of the row
    assert grid.at(225, 270) is None  # the step below the image
    assert grid.at(500, 170) is None
    assert list(grid.visible(0, 100, 0, 200)) == [0, 1]
    assert list(grid.visible(150, 1000, 120, 1000)) == [5, 6, 7, 9, 10, 11]
    assert GridLayout(0, 1, 100, 135, 10).width == 0


def test_the_edge_between_two_images_stays_on_them() -> None:
    assert Wipe().at(150, 100, 200) == Wipe(0.25)
    assert Wipe().at(-5, 100, 200) == Wipe(0.0)
    assert Wipe().at(500, 100, 200) == Wipe(1.0)
    assert Wipe(0.98).by(0.05) == Wipe(1.0)


def test_stars_are_kept_in_the_runs_folder(tmp_path: Path) -> None:
    inside = tmp_path / "samples" / "01 a" / "step-5.png"
    assert read_stars(tmp_path) == frozenset()
    write_stars(tmp_path, {name_of(inside, tmp_path), name_of(Path("/elsewhere/x.png"), tmp_path)})
    assert read_stars(tmp_path) == {"samples/01 a/step-5.png", "/elsewhere/x.png"}
    (tmp_path / STARS_FILE).write_text("{ half", encoding="utf-8")
    assert read_stars(tmp_path) == frozenset()


def test_the_model_of_a_step_is_its_save_else_its_backup(tmp_path: Path) -> None:
    def save(step: int, name: str) -> ModelSaved:
        (tmp_path / name).touch()
        return ModelSaved(step, str(tmp_path / name), "kohya", is_final=False)

    saves = [save(5, "best"), save(5, "step-5"), save(10, "best"), ModelSaved(20, str(tmp_path / "gone"), "k", False)]
    backups = [(10, Path("/backup/10")), (20, Path("/backup/20"))]
    assert model_of_step(5, saves, backups) == StepModel(5, tmp_path / "step-5", None)
    assert model_of_step(10, saves, backups) == StepModel(10, tmp_path / "best", Path("/backup/10"))
    assert model_of_step(20, saves, backups) == StepModel(20, None, Path("/backup/20"))
    assert model_of_step(7, saves, backups) == StepModel(7)
