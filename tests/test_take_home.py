"""The page on taking a net home: its code is run here, after a run of seconds."""

import re
from pathlib import Path

import pytest
import torch

from dapperfl.lab.experiment import run
from dapperfl.lab.resolve import resolve
from tests.lab.conftest import TOY

PAGE = (Path(__file__).parents[1] / "docs/take-home.md").read_text()
NEEDED = ("config.toml", "allocation.json", "summary.json", "levels/")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A device with the part of a run folder that the page tells it to copy, and pictures."""
    from PIL import Image

    monkeypatch.chdir(tmp_path)
    demo = tmp_path / "runs/demo"
    run(resolve(None, TOY), demo)
    for path in demo.rglob("*"):
        if path.is_file() and not str(path.relative_to(demo)).startswith(NEEDED):
            path.unlink()
    (tmp_path / "garden").mkdir()
    for number, colour in enumerate(("red", "green", "blue")):
        Image.new("RGB", (20, 9), colour).save(tmp_path / f"garden/{number}.png")
    return tmp_path


def test_the_code_of_the_page_works(here, capsys):
    assert all(f"`{name}`" in PAGE for name in NEEDED)
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    known: dict[str, object] = {}
    exec(compile(code, "take-home.md", "exec"), known)
    said = capsys.readouterr().out.splitlines()
    assert said[0].endswith("(3, 8, 8)")
    assert [line.split()[0] for line in said[1:]] == ["0.png", "1.png", "2.png"]
    net, pictures = known["net"], known["pictures"]
    assert isinstance(net, torch.nn.Module)
    assert isinstance(pictures, torch.Tensor)
    program = torch.export.load(here / "garden.pt2").module()
    assert torch.allclose(program(pictures[1:2]), net(pictures)[1:2], atol=1e-5)
