"""The names that `import dapperfl` promises."""

import doctest
import subprocess
import sys

import pytest

import dapperfl

NAMES = [
    "ChannelGraph",
    "CoverageMean",
    "LocalModel",
    "RecoveredMean",
    "Simulator",
    "Submodel",
    "calibrate",
    "feature_norm",
    "fuse",
    "fusion_factor",
    "keep_for_budget",
    "l1_scores",
    "load_run",
    "read_pictures",
]


def test_every_public_name_is_there():
    assert set(NAMES) | {"__version__"} == set(dapperfl.__all__)
    for name in dapperfl.__all__:
        assert getattr(dapperfl, name).__class__ is not None
        assert name in dir(dapperfl)


@pytest.mark.parametrize("name", NAMES)
def test_a_public_name_is_documented_and_called_what_it_says(name):
    thing = getattr(dapperfl, name)
    assert thing.__name__ == name
    assert thing.__doc__


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'FedMagic'"):
        dapperfl.FedMagic  # noqa: B018


def test_the_example_of_the_package_runs():
    outcome = doctest.testmod(dapperfl)
    assert outcome.attempted >= 8
    assert outcome.failed == 0


def test_the_package_is_imported_without_torch_until_it_is_needed():
    code = "import sys, dapperfl.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
