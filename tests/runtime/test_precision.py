import os
from collections.abc import Iterator

import pytest
import torch

from dapperfl.runtime.precision import Precision, autocast, set_arithmetic


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Put torch's switches back; they hold for the whole process."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark, matmul.allow_tf32
    strict = torch.are_deterministic_algorithms_enabled()
    filled = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
    yield
    cudnn.allow_tf32, cudnn.deterministic, cudnn.benchmark, matmul.allow_tf32 = before
    torch.use_deterministic_algorithms(strict)
    torch.utils.deterministic.fill_uninitialized_memory = filled  # type: ignore[attr-defined]
    if workspace is None:
        os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)


@pytest.mark.parametrize(("precision", "short"), [("fp32", False), ("tf32", True), ("bf16", True)])
@pytest.mark.parametrize("exact", [True, False])
def test_the_switches_follow_the_precision_and_whether_bits_must_repeat(
    precision: Precision, short: bool, exact: bool
) -> None:
    set_arithmetic(precision, exact=exact)
    assert torch.backends.cudnn.allow_tf32 is short
    assert torch.backends.cuda.matmul.allow_tf32 is short
    assert torch.backends.cudnn.deterministic is exact
    assert torch.backends.cudnn.benchmark is not exact
    assert torch.are_deterministic_algorithms_enabled() is exact


@pytest.mark.parametrize(
    ("precision", "kind"),
    [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16)],
)
def test_only_bf16_multiplies_in_another_format(precision: Precision, kind: torch.dtype) -> None:
    with autocast(precision, torch.device("cpu")):
        assert torch.nn.Linear(2, 2)(torch.ones(1, 2)).dtype == kind
