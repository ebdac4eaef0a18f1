"""The report in a real browser: phone, dark, scripts off, on paper, and no stranger's script.

Needs Chromium or Chrome: on the path, or named by DAPPERFL_CHROMIUM.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from html import escape
from pathlib import Path

import pytest
from PIL import Image
from tests.lab.made_runs import write_run

from dapperfl.lab.report import write_report

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
BROWSER = os.environ.get("DAPPERFL_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium found; set DAPPERFL_CHROMIUM"),
]
KEPT = [{0.5: {"conv": "64:ffff0000ffff0000"}, 0.8: {"conv": "64:1"}}] * 3
BLUE, ORANGE = (0, 114, 178), (213, 94, 0)  # the first two pens on light paper
PHONE = 390
Browse = Callable[..., str]


@pytest.fixture
def browse(tmp_path: Path) -> Browse:
    """Return a function that opens a page with some flags and gives back what is printed."""

    def run(page: Path, *flags: str, width: int = 1280, height: int = 4000) -> str:
        command = [
            str(BROWSER),
            "--headless=new",
            "--no-sandbox",  # tests may run as root, and the page is our own
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},{height}",
            *flags,
            page.as_uri(),
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
        return done.stdout

    return run


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    long = "train.weight_decay=0.000123"
    for seed in (0, 1):
        curve = [20.0 + 10 * seed, 50.0, 70.0 + seed]
        write_run(folder / f"a{seed}", f"seed={seed}", dark=curve, light=curve, kept=KEPT)
        write_run(folder / f"b{seed}", "method=fedavg", long, f"seed={seed}", dark=curve,
                  light=[10.0, 20.0, 30.0])  # fmt: skip
    return write_report([folder])


def _colours(picture: Path) -> dict[tuple[int, ...], int]:
    with Image.open(picture) as image:
        found = image.convert("RGB").getcolors(image.width * image.height) or []
    return {colour: count for count, colour in found if isinstance(colour, tuple)}


def test_curves_and_heat_maps_are_drawn_with_scripts_off(browse, report, tmp_path):
    page, picture = tmp_path / "still.html", tmp_path / "page.png"
    page.write_text(re.sub(r"script-src [^\"]+", "script-src &#x27;none&#x27;", report.read_text()))
    assert "copy as Markdown</button>" not in browse(page, "--dump-dom")
    browse(page, f"--screenshot={picture}")
    colours = _colours(picture)
    assert sum(colours.values()) == 1280 * 4000
    assert colours[BLUE] > 10_000  # heat maps, lines and points
    assert colours[ORANGE] > 300
    assert colours[255, 255, 255] > 2_000_000


def test_dark_mode_is_dark(browse, report, tmp_path):
    picture = tmp_path / "dark.png"
    browse(report, f"--screenshot={picture}", "--blink-settings=preferredColorScheme=0")
    colours = _colours(picture)
    assert max(colours, key=colours.__getitem__) == (0x15, 0x19, 0x1E)
    assert (255, 255, 255) not in colours


def test_a_phone_never_scrolls_sideways(browse, report, tmp_path):
    # A window may not be as narrow as a phone, but a frame may.
    probe = "document.title = this.contentDocument.documentElement.scrollWidth"
    style = f"width: {PHONE}px; height: 900px; border: 0"
    page = tmp_path / "probe.html"
    page.write_text(
        f'<title></title><iframe style="{style}" onload="{probe}" '
        f'srcdoc="{escape(report.read_text())}"></iframe>'
    )
    dom = browse(page, "--dump-dom")
    assert f"<title>{PHONE}</title>" in dom


def test_with_scripts_every_table_can_be_copied_and_lines_hidden(browse, report):
    dom = browse(report, "--dump-dom")
    tables = dom.count("<table")
    assert tables > 8
    assert dom.count("copy as Markdown") == dom.count("copy for a spreadsheet") == tables + 1
    assert dom.count('aria-pressed="') == 0
    assert dom.count('role="button"') == 6  # two groups in three legends


def test_a_script_in_a_name_does_not_run(browse, report, tmp_path):
    evil = "<script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
    run = write_run(tmp_path / "run")
    config = run / "config.toml"
    config.write_text(config.read_text().replace('"dapperfl"', f'"{evil}"'))
    page = write_report([run])
    # Even if a name were not escaped, the page's policy would not let it run.
    page.write_text(page.read_text().replace("</main>", f"{evil}</main>"))
    dom = browse(page, "--dump-dom")
    assert "<title>Federated learning on minidigits</title>" in dom


def test_it_can_be_printed(browse, report, tmp_path):
    paper = tmp_path / "report.pdf"
    browse(report, f"--print-to-pdf={paper}", "--no-pdf-header-footer")
    data = paper.read_bytes()
    assert data.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", data)) >= 3
