"""Put a picture of a report on the front page: `python docs/make_report.py RUNS`.

RUNS is the folder of `dapperfl compare --methods dapperfl,fedavg,fedrolex --seeds 0,1 --out RUNS`.
Needs Chromium or Chrome: on the path, or named by DAPPERFL_CHROMIUM.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from dapperfl.lab.report import write_report

PICTURE = Path(__file__).parent / "images" / "report.png"
WIDTH, HEIGHT = 1280, 2285  # down to the accuracy by cost
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def main() -> None:
    """Write the report, open it in a browser without a window, and keep what that shows."""
    browser = os.environ.get("DAPPERFL_CHROMIUM") or next(
        filter(None, map(shutil.which, NAMES)), None
    )
    if browser is None or len(sys.argv) != 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        page = write_report([Path(sys.argv[1])], Path(folder) / "report.html")
        shot = Path(folder) / "report.png"
        command = [
            browser,
            "--headless=new",
            "--no-sandbox",  # the page is our own
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
            f"--window-size={WIDTH},{HEIGHT}",
            f"--screenshot={shot}",
            page.as_uri(),
        ]
        subprocess.run(command, capture_output=True, check=True, timeout=120)
        with Image.open(shot) as image:
            image.convert("RGB").quantize(128).save(PICTURE, optimize=True)


if __name__ == "__main__":
    main()
