from pathlib import Path

from dapperfl.data.inventory import inventory
from dapperfl.data.prepare import prepare
from tests.data.official import write_mnist


def test_what_is_there_is_counted_and_what_is_not_is_missing(tmp_path: Path) -> None:
    write_mnist(tmp_path / "source", "train", 30)
    write_mnist(tmp_path / "source", "test", 20)
    prepare("digits", tmp_path / "source", root=tmp_path)
    damaged = tmp_path / "digits" / "mnist_test.npz"
    damaged.write_bytes(b"PK")
    items = list(inventory(tmp_path))
    assert len(items) == 16
    there = items[0]
    assert (there.benchmark, there.domain, there.split) == ("digits", "mnist", "train")
    assert (there.images, there.trouble) == (30, "")
    assert there.bytes == there.path.stat().st_size > 30 * 28 * 28
    assert "cannot be read" in items[1].trouble
    assert {item.trouble for item in items[2:]} == {"missing"}
