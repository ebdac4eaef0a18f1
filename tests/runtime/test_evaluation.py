import pytest
import torch
from torch import nn

from dapperfl.core.net import Batch
from dapperfl.runtime.evaluation import evaluate


def test_accuracy_is_the_share_of_right_answers_over_all_batches():
    batches = [
        Batch(torch.eye(3), torch.tensor([0, 1, 0])),  # two of three
        Batch(torch.eye(3)[:1], torch.tensor([0])),  # one of one
    ]
    other = [Batch(torch.eye(3), torch.tensor([1, 2, 0]))]
    assert evaluate(nn.Identity(), {"a": batches, "b": other}) == {"a": 75.0, "b": 0.0}


def test_nothing_to_evaluate_on_is_said():
    assert evaluate(nn.Identity(), {}) == {}
    with pytest.raises(ValueError, match="nothing to evaluate"):
        evaluate(nn.Identity(), {"a": []})
