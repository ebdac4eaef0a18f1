"""What `--space` accepts, what it means, and what it refuses at once."""

import pytest

from dapperfl.errors import ConfigError
from dapperfl.lab.config import Config, to_keys
from dapperfl.lab.resolve import resolve
from dapperfl.lab.tuning.space import (
    Choice,
    Interval,
    default_space,
    parse_space,
    with_values,
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("method.alpha_0=0..1", Interval("method.alpha_0", 0, 1, log=False, whole=False)),
        ("train.lr = .01...5", Interval("train.lr", 0.01, 0.5, log=False, whole=False)),
        ("method.gamma=log(1e-4,1)", Interval("method.gamma", 1e-4, 1, log=True, whole=False)),
        ("net.width=4..16", Interval("net.width", 4, 16, log=False, whole=True)),
        ("net.width=log(2, 64)", Interval("net.width", 2, 64, log=True, whole=True)),
        ("method.recovery={paper,gated}", Choice("method.recovery", ("paper", "gated"))),
        ("method.dar_power={1, 2}", Choice("method.dar_power", (1, 2))),
        ("net.width={8,none}", Choice("net.width", (8, "none"))),
        ("train.lr={.1,0.1,1e-2}", Choice("train.lr", (0.1, 0.01))),
        ("fleet.rhos={[0],[0,0.5]}", Choice("fleet.rhos", ([0.0], [0.0, 0.5]))),
    ],
)
def test_the_three_forms(text, expected):
    assert parse_space([text], Config()) == (expected,)
    assert parse_space([str(expected)], Config()) == (expected,)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("method.gama=0..1", 'unknown key "method.gama"; did you mean "gamma"?'),
        ("lr=0..1", 'did you mean "train.lr"?'),
        ("train.lr.x=0..1", "lr is a value, not a table"),
        ("method.gamma=-1..1", "gamma = -1.0: expected at least 0"),
        ("method.alpha_0=0..2", "alpha_0 = 2.0: expected at least 0 and at most 1"),
        ("train.lr=0..1", "train.lr = 0.0: expected above 0"),
        ("method.gamma=log(0,1)", "a logarithm needs numbers above 0"),
        ("method.gamma=1..0", "the smaller one first"),
        ("method.gamma=1..1", "the smaller one first"),
        ("method.gamma=0..inf", "expected a finite number"),
        ("method.gamma=0..many", "expected a finite number"),
        ("net.width=none..8", "none is no number"),
        ("net.width=1.5..3", "expected a whole number"),
        ("method.dar_power=1..2", "method.dar_power takes 1 or 2; write {A,B}"),
        ("method.recovery={paper,gatd}", 'expected "paper", "gated" or "zero"'),
        ("method.recovery={paper}", "expected 2 to 100 different values"),
        ("method.recovery=paper", "expected LOW..HIGH, log(LOW,HIGH) or {A,B}"),
        ("method.gamma", "a shell wants it quoted"),
        ("seed=0..4", "name the seeds of every trial with --seeds"),
        ("rounds=5..50", "all trials have as many rounds as the config"),
        ("method={fedavg,fedprox}", "dapperfl compare"),
        ("data.validation=.1...5", "it says what trials are judged by"),
        ("engine.precision={fp32,bf16}", "how fast they run"),
        ("deploy.deadline=1..3", "where and how fast they run"),
        ("checkpoint_every=1..3", "where and how fast they run"),
    ],
)
def test_what_is_wrong_is_refused_with_the_text_and_the_reason(text, words):
    with pytest.raises(ConfigError) as caught:
        parse_space([text], Config())
    assert str(caught.value).startswith(f"--space {text}: ")
    assert words in str(caught.value)


def test_a_space_names_each_key_once_and_at_least_one():
    with pytest.raises(ConfigError, match=r"names method\.gamma twice"):
        parse_space(["method.gamma=0..1", "method.gamma=log(1,2)"], Config())
    with pytest.raises(ConfigError, match="nothing to search"):
        parse_space([], Config())


def test_the_usual_space_is_of_the_papers_constants():
    keys = [each.key for each in parse_space(default_space(Config()), Config())]
    assert keys == ["method.alpha_0", "method.alpha_min", "method.epsilon", "method.gamma"]
    with pytest.raises(ConfigError, match='no usual space for method "fedavg"; say what'):
        default_space(resolve(None, ["method=fedavg"]))


def test_values_change_their_keys_and_nothing_else():
    before = to_keys(Config())
    values = {"method.gamma": 0.5, "net.width": "none", "rounds": 3, "fleet.rhos": [0.0]}
    after = to_keys(with_values(Config(), values))
    assert {key: after[key] for key in after if after[key] != before[key]} == values


def test_what_is_drawn_and_what_a_config_holds():
    width = Interval("net.width", 4, 16, log=False, whole=True)
    assert (width.value(8.0), width.drawn(8), width.drawn(32)) == (8, 8, None)
    assert isinstance(width.value(8.0), int)
    assert width.drawn("none") is None
    rhos = Choice("fleet.rhos", ([0.0], [0.0, 0.5]))
    assert rhos.texts == ("[0.0]", "[0.0, 0.5]")
    assert rhos.value("[0.0, 0.5]") == [0.0, 0.5]
    assert (rhos.drawn([0.0]), rhos.drawn([0.9])) == ("[0.0]", None)
