"""The page in a real browser, at the size of a phone and of a desktop, over a real run that waits for a person."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from modules.config.codec import export_file
from modules.config.presets import save_preset
from modules.config.schema import Config
from modules.system.paths import queue_file
from tests.builders.browser import CHROMIUM, DRIVER, WHY_NOT, Browser, browsers
from tests.builders.images import draw_folder
from tests.builders.web_page import make_run
from tests.training.test_checkpoints import PROMPT
from tests.training.test_choosing import config_in
from trainer.run_folder.backup import list_backups, write_backup
from trainer.run_folder.choices import pairs_dir
from trainer.run_folder.records import read_record, run_dirs
from trainer.run_queue.file import QueueFile
from trainer.run_status import RunStatus
from trainer.web import site
from trainer.web.runs import id_of
from trainer.web.serving import PageServer

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=WHY_NOT)
_MAX_CONNECTIONS = 6  # of a browser to one server
PHONE, DESKTOP = (390, 844), (1280, 860)


@pytest.fixture
def workspace(tiny_sd: Path, tmp_path: Path) -> Path:
    images = draw_folder(tmp_path / "images", sizes=[(64, 64)] * 4, captions=["a disc", "a red disc, small"])
    sampling = {"prompts": [PROMPT], "at_start": True}
    config = config_in(tmp_path, tiny_sd, images, training={"epochs": 20}, sampling=sampling)
    save_preset(config, "By choice")
    return Path(config.general.workspace_dir)


@pytest.fixture
def server(workspace: Path) -> Iterator[PageServer]:
    page = PageServer(lambda: [workspace], QueueFile(queue_file()), host="127.0.0.1", port=0, token="0123456789abcdef")
    thread = page.start()
    yield page
    page.stop()
    thread.join(120)


_UNREADABLE = """
return [...document.querySelectorAll("button")].filter((button) => button.checkVisibility()).filter((button) => {
  const { color, backgroundColor } = getComputedStyle(button);
  return color === backgroundColor;
}).map((button) => button.innerText);
"""


def assert_fits(browser: Browser) -> None:
    """Nothing is wider than the screen, all buttons can be read, and the browser complains about nothing."""
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
    assert browser.run(_UNREADABLE) == []
    assert browser.complaints() == []


def assert_fits_at_all_widths(browser: Browser) -> None:
    for width_px in (320, 600, 900, 1100, 1280):
        browser.resize(width_px, 860)
        browser.wait_for(f"innerWidth == {width_px}")
        assert_fits(browser)


@pytest.mark.full
@pytest.mark.slow
def test_a_run_from_its_start_to_its_stop(server: PageServer, workspace: Path, tmp_path: Path) -> None:
    with browsers(tmp_path) as open_browser:
        phone = open_browser(*PHONE, is_phone=True)
        phone.open(server.address.url.partition("#")[0])
        phone.wait_for("document.querySelector('#login').open")
        assert [c for c in phone.complaints() if "401" not in c] == []
        phone.open("about:blank")
        phone.open(server.address.url)
        phone.wait_for("document.querySelector('#start option')")
        assert "token" not in phone.run("return location.href")
        assert phone.text("#start option") == "By choice"
        phone.click("#start button")
        phone.wait_for("document.querySelector('#toast').innerText == 'By choice starts.'")
        phone.click("#running a.row")
        assert_fits(phone)

        phone.click(".choose")
        phone.click(".candidates:not(.waiting) button")
        phone.wait_for("document.querySelector('#board .count').innerText.startsWith('2 of')")
        phone.click("[data-do=undo]")
        phone.wait_for("document.querySelector('#board .count').innerText.startsWith('1 of')")
        num_requests = int(phone.text("#board .count").split()[-1])
        for n in range(num_requests):
            phone.wait_for("document.querySelector('.candidates:not(.waiting) button')")
            phone.click("[data-do=tie]" if n == 1 else ".candidates button:last-child")
        phone.click("#board .close")
        phone.wait_for("document.querySelector('.where').innerText.startsWith('Step 2')")
        (run_dir,) = run_dirs(workspace)
        assert len(list((pairs_dir(run_dir) / "chosen").glob("*.png"))) == num_requests - 1
        assert_fits(phone)

        desktop = open_browser(*DESKTOP, is_phone=False)
        desktop.open(server.address.url)
        desktop.wait_for("document.querySelector('.curves .smooth')?.getAttribute('d').includes('L')")
        desktop.wait_for("[...document.querySelectorAll('.strip img')].some((image) => image.naturalWidth > 0)")
        desktop.click(".strip button")
        desktop.wait_for("document.querySelector('#viewer img').naturalWidth == 64")
        desktop.click("#viewer .close")
        assert_fits_at_all_widths(desktop)

        desktop.run("document.querySelector('[data-key=pause]').id = 'pressed'")
        desktop.click("[data-key=pause]")
        desktop.wait_for("document.querySelector('#pressed')?.innerText == 'Continue'")  # which refuses a second click
        phone.wait_for("document.querySelector('.pill').innerText == 'Paused'")
        phone.click("[data-key=pause]")
        phone.wait_for("document.querySelector('[data-key=pause]').innerText == 'Pause'")
        phone.wait_for("document.querySelector('[data-key=pause]').ariaDisabled == 'false'")
        phone.click("[data-key=pause]")
        phone.click("[data-key=stop]")
        phone.click("#confirm button[value=no]")
        phone.wait_for("document.querySelector('[data-key=stop]').ariaDisabled == 'false'")  # a moment after the answer
        phone.click("[data-key=stop]")
        phone.click("#confirm button[value=yes]")
        phone.wait_for("document.querySelector('.pill').innerText == 'Stopped'")
        phone.click(".back")
        phone.wait_for("document.querySelector('#earlier a.row')?.innerText.includes('Stopped')")
        assert_fits(phone)
    assert read_record(run_dir).status is RunStatus.STOPPED
    assert list_backups(run_dir)


def test_a_run_is_shown_at_every_size_and_called_gone_only_if_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = make_run(tmp_path / "workspace")
    write = lambda folder: export_file(Config(), folder / "config.json")  # noqa: E731
    write_backup(run_dir, step=2, epoch=1, now=datetime(2026, 11, 29), write=write)
    page = PageServer(lambda: [tmp_path / "workspace"], QueueFile(queue_file()), host="127.0.0.1", port=0)
    thread = page.start()
    with browsers(tmp_path) as open_browser:
        phone = open_browser(*PHONE, is_phone=True)
        with monkeypatch.context() as full:
            full.setattr(site, "_MAX_STREAMS", 0)
            phone.open(f"{page.address.url}#/run/{id_of(run_dir)}")
            phone.wait_for("document.querySelector('#connection').innerText.startsWith('Connection lost')")
        phone.wait_for("document.querySelector('#run h1').innerText == 'zog'")
        assert phone.text("#connection") == ""
        assert phone.text("#toast") == ""
        phone.complaints()  # about the lost connection
        assert_fits(phone)
        desktop = open_browser(*DESKTOP, is_phone=False)
        desktop.open(f"{page.address.url}#/run/{id_of(run_dir)}")
        desktop.wait_for("document.querySelector('#run h1').innerText == 'zog'")
        desktop.wait_for("document.querySelector('[data-key=resume_run]')")
        assert_fits_at_all_widths(desktop)
        for _ in range(_MAX_CONNECTIONS + 1):
            desktop.open_in_tab(f"{page.address.url}#/run/{id_of(run_dir)}")
            desktop.wait_for("document.querySelector('#run h1').innerText == 'zog'")
        shutil.rmtree(run_dir)
        phone.run("location.reload()")
        phone.wait_for("document.querySelector('#toast').innerText == 'This run is not there any more.'")
        assert phone.run("return location.hash") == "#/"
    page.stop()
    thread.join(120)
