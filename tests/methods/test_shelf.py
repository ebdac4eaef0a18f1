import dataclasses
import sys

import pytest
from tests.methods.rig import assigned, server_of

from dapperfl import methods
from dapperfl.errors import ConfigError
from dapperfl.methods.base import Method
from dapperfl.methods.dapperfl import DapperFL

SERVER_CUTS = ("fedavg_small", "feddrop", "fedmp", "fedrolex", "heterofl")


def test_names_are_the_files_of_the_folder():
    assert {"fedavg", "dapperfl"} <= set(methods.names())
    assert "base" not in methods.names()


@pytest.mark.parametrize("name", methods.names())
def test_every_method_loads_with_every_preset(name):
    cls = methods.load(name)
    assert issubclass(cls, Method)
    assert "default" in cls.presets
    for preset in cls.presets:
        assert isinstance(cls.from_preset(preset), cls)


@pytest.mark.parametrize("name", methods.names())
def test_every_field_has_a_line_of_help(name):
    for field in dataclasses.fields(methods.load(name)):
        assert field.metadata.get("help"), f"{name}.{field.name}"


def test_a_misspelt_name_gets_the_nearest():
    with pytest.raises(ConfigError, match='unknown method "daperfl"; did you mean "dapperfl"'):
        methods.load("daperfl")


def test_a_method_from_outside_is_loaded_by_path(tmp_path, monkeypatch):
    (tmp_path / "outside_method.py").write_text(
        "from dapperfl.methods.fedavg import FedAvg\nclass Mine(FedAvg): pass\nother = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert methods.load("outside_method:Mine").__name__ == "Mine"
    with pytest.raises(ConfigError, match="not a subclass"):
        methods.load("outside_method:other")
    with pytest.raises(ConfigError, match='cannot load "outside_method:Gone"'):
        methods.load("outside_method:Gone")
    with pytest.raises(ConfigError, match="No module named"):
        methods.load("no_such_module_here:X")
    sys.modules.pop("outside_method", None)


@pytest.mark.parametrize("field", ["softness: float = setting(0.1, 'help')", "mu = 0.5"])
def test_fields_of_a_class_without_its_decorator_are_refused(tmp_path, monkeypatch, field):
    name = f"plain_{field[:2]}"
    (tmp_path / f"{name}.py").write_text(
        "from dapperfl.methods.fedprox import FedProx\nfrom dapperfl.settings import setting\n"
        f"class Mine(FedProx):\n    {field}\nclass Quiet(FedProx): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    told = r"Mine\.(softness|mu) has no effect; write @dataclass\(frozen=True, kw_only=True\)"
    with pytest.raises(ConfigError, match=told):
        methods.load(f"{name}:Mine")
    assert methods.load(f"{name}:Quiet").__name__ == "Quiet"  # it has no fields of its own
    sys.modules.pop(name, None)


@pytest.mark.parametrize("taken", ["name", "preset"])
def test_a_field_whose_key_means_something_else_is_refused(tmp_path, monkeypatch, taken):
    (tmp_path / f"taken_{taken}.py").write_text(
        "from dataclasses import dataclass\nfrom dapperfl.methods.base import Method\n"
        "from dapperfl.settings import setting\n@dataclass(frozen=True, kw_only=True)\n"
        f"class Mine(Method):\n    {taken}: str = setting('x', 'help')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=rf"Mine\.{taken} could not be told from the key method"):
        methods.load(f"taken_{taken}:Mine")
    sys.modules.pop(f"taken_{taken}", None)


def test_a_field_without_a_default_is_refused(tmp_path, monkeypatch):
    (tmp_path / "bare.py").write_text(
        "from dataclasses import dataclass\nfrom dapperfl.methods.base import Method\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Mine(Method):\n    mu: float\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=r"Mine\.mu has no default; write mu: … = setting\("):
        methods.load("bare:Mine")
    sys.modules.pop("bare", None)


def test_an_unknown_preset_is_named():
    with pytest.raises(ConfigError, match='unknown preset "papr" of DapperFL'):
        DapperFL.from_preset("papr")


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("alpha_0", 1.5, "alpha_0 = 1.5: expected at least 0 and at most 1"),
        ("gamma", -1.0, "gamma = -1.0: expected at least 0"),
        ("gamma", float("nan"), "gamma = nan: expected"),
        ("dar_power", 3, "dar_power = 3: expected one of 1, 2"),
        ("recovery", "none", "recovery = none: expected one of paper, gated, zero"),
        ("multiple", 0, "multiple = 0: expected at least 1"),
    ],
)
def test_values_out_of_range_are_named(field, value, message):
    with pytest.raises(ConfigError, match=message):
        DapperFL(**{field: value})


@pytest.mark.parametrize(
    "method",
    [
        *(methods.load(name)() for name in SERVER_CUTS),
        DapperFL(dense="never"),
    ],
    ids=lambda method: type(method).__name__,
)
def test_devices_of_a_level_share_one_cut(method):
    """A large fleet has many devices and few levels."""
    server = server_of(method, rhos=(0.0, 0.6, 0.6))
    first, second = (assigned(method, server, device) for device in (1, 2))
    assert first.model is second.model
    assert first.device != second.device
    later = server.advance(server.weights)
    assert assigned(method, later, 1).model is not first.model
