"""Runs that differ in their seed only become one group, with numbers checked by hand."""

import json
from math import sqrt

import pytest

from dapperfl.lab.gather import load_runs
from dapperfl.lab.groups import Spread, differing, grouped, spread
from tests.lab.made_runs import write_run


def test_mean_sample_deviation_and_range():
    # (2-4)² + (3-4)² + (7-4)² = 14, over n - 1 = 2
    assert spread([2.0, 3.0, 7.0]) == Spread(4.0, sqrt(7), 2.0, 7.0, 3)
    assert spread([5.0]) == Spread(5.0, None, 5.0, 5.0, 1)


def test_seeds_make_a_group_and_methods_make_two(tmp_path):
    for seed in (1, 0):
        write_run(tmp_path / f"a{seed}", f"seed={seed}")
        write_run(tmp_path / f"b{seed}", "method=fedavg", f"seed={seed}")
    groups = grouped(load_runs([tmp_path]))
    assert [group.label for group in groups] == ["dapperfl:default", "fedavg:default"]
    assert [[run.seed for run in group.counted] for group in groups] == [[0, 1], [0, 1]]


def test_a_label_names_what_differs_and_nothing_else(tmp_path):
    write_run(tmp_path / "a", "method.gamma=0.5", "train.lr=0.1")
    write_run(tmp_path / "b", "method.gamma=0.25", "train.lr=0.1")
    write_run(tmp_path / "c", "method=fedprox", "method.mu=7", "train.lr=0.2")
    labels = [group.label for group in grouped(load_runs([tmp_path]))]
    assert labels == [
        "dapperfl:default train.lr=0.1 gamma=0.5",
        "dapperfl:default train.lr=0.1 gamma=0.25",
        "fedprox:default train.lr=0.2 mu=7.0",
    ]


def test_what_is_not_as_the_preset_has_it_is_named_though_all_runs_share_it(tmp_path):
    write_run(tmp_path / "a", "method=fedavg")
    write_run(tmp_path / "b", "method.gamma=0")
    write_run(tmp_path / "c", "method.preset=paper", "method.epsilon=0.5")
    labels = [group.label for group in grouped(load_runs([tmp_path]))]
    assert labels == ["fedavg:default", "dapperfl:default gamma=0.0", "dapperfl:paper epsilon=0.5"]


def test_a_method_that_is_not_here_has_a_name_all_the_same(tmp_path):
    written = write_run(tmp_path / "a", "method.gamma=0") / "config.toml"
    written.write_text(written.read_text().replace('name = "dapperfl"', 'name = "gone:Gone"'))
    [group] = grouped(load_runs([tmp_path]))
    assert group.label == "gone:Gone:default"


def test_a_field_that_an_older_run_lacks_is_no_difference_from_its_preset(tmp_path):
    written = write_run(tmp_path / "a") / "config.toml"
    lines = written.read_text().splitlines()
    written.write_text("\n".join(line for line in lines if not line.startswith("gamma")))
    [group] = grouped(load_runs([tmp_path]))
    assert group.label == "dapperfl:default"


def test_other_benchmarks_do_not_lengthen_a_label(tmp_path):
    write_run(tmp_path / "a", "train.lr=0.1")
    write_run(tmp_path / "b", "train.lr=0.2", "data=tests.lab.toy_world:load")
    groups = grouped(load_runs([tmp_path]))
    assert [group.label for group in groups] == ["dapperfl:default", "dapperfl:default"]
    assert [group.benchmark for group in groups] == ["minidigits", "tests.lab.toy_world:load"]


def test_the_machine_does_not_split_a_group(tmp_path):
    write_run(tmp_path / "a", "engine.device=cpu", "data.root=/here")
    write_run(tmp_path / "b", "seed=1", "engine.device=cuda", "data.root=/there")
    runs = load_runs([tmp_path])
    assert differing(runs) == []
    assert len(grouped(runs)) == 1


def test_two_folders_of_pictures_are_two_groups(tmp_path):
    write_run(tmp_path / "a", "data=folder", "data.root=here")
    write_run(tmp_path / "b", "data=folder", "data.root=there", "seed=1")
    labels = [group.label for group in grouped(load_runs([tmp_path]))]
    assert labels == ["dapperfl:default data.root=here", "dapperfl:default data.root=there"]


def test_marks_and_curves_are_means_over_seeds(tmp_path):
    write_run(tmp_path / "a", dark=(10, 40, 20), light=(10, 20, 60))
    write_run(tmp_path / "b", "seed=1", dark=(20, 20, 30), light=(30, 40, 10))
    [group] = grouped(load_runs([tmp_path]))
    assert group.domains == ("dark", "light")
    assert group.mark("best", "dark") == spread([40, 30])
    assert group.mark("last", "light") == spread([60, 10])
    assert group.mark("best") == spread([40, 30])  # means by round: 10 30 40, 25 30 20
    assert group.mark("last5").mean == pytest.approx((80 / 3 + 25) / 2)
    assert group.curve() == [spread([10, 25]), spread([30, 30]), spread([40, 20])]
    assert group.curve("dark")[0] == spread([10, 20])
    assert group.cost("bytes_up").mean == 101  # of 100, 101 and 102


def test_only_finished_runs_count_where_there_are_some(tmp_path):
    write_run(tmp_path / "a", "rounds=3", dark=(50, 60, 70), light=(50, 60, 70))
    write_run(tmp_path / "b", "seed=1", "rounds=3", dark=(90,), light=(90,), finished=False)
    [group] = grouped(load_runs([tmp_path]))
    assert len(group.runs) == 2
    assert group.finished
    assert group.mark("last") == spread([70])


def test_without_a_finished_run_the_rounds_so_far_count(tmp_path):
    write_run(tmp_path / "a", "rounds=9", dark=(10, 20), light=(10, 20), finished=False)
    write_run(tmp_path / "b", "seed=1", "rounds=9", dark=(30,), light=(30,), finished=False)
    write_run(tmp_path / "c", "seed=2", "rounds=9", dark=(), light=(), finished=False)
    [group] = grouped(load_runs([tmp_path]))
    assert not group.finished
    assert group.curve() == [spread([10, 30]), spread([20])]


def test_a_group_without_a_round_has_nothing_to_count(tmp_path):
    write_run(tmp_path, dark=(), light=(), finished=False)
    [group] = grouped(load_runs([tmp_path]))
    assert (group.counted, group.domains, group.finished) == ((), (), False)


def test_a_repeated_seed_counts_once(tmp_path):
    write_run(tmp_path / "a", "rounds=2", dark=(10,), light=(10,), finished=False)
    write_run(tmp_path / "b", "rounds=2", dark=(10, 20), light=(10, 20))
    [group] = grouped(load_runs([tmp_path]))
    assert group.mark("last").count == 1
    assert group.mark("last").mean == 20


def test_an_option_that_begins_like_the_folders_splits_a_group(tmp_path):
    rooted = "data=tests.lab.toy_world:load_rooted"
    write_run(tmp_path / "a", rooted, "data.root_light=0.4")
    write_run(tmp_path / "b", rooted, "data.root_light=0.5", "seed=1")
    labels = [group.label for group in grouped(load_runs([tmp_path]))]
    assert labels == [f"dapperfl:default data.root_light={light}" for light in (0.4, 0.5)]


def test_a_domain_that_a_seed_lacks_is_of_the_seeds_that_have_it(tmp_path):
    for seed, alone in ((0, True), (1, False), (2, False)):
        folder = write_run(tmp_path / f"s{seed}", f"seed={seed}", dark=(10, 20.0 + seed))
        if alone:  # nothing of "light" was kept aside there
            rounds = folder / "rounds.jsonl"
            lines = [json.loads(line) for line in rounds.read_text().splitlines()]
            for line in lines:
                line["mean_accuracy"] = line["accuracy"]["dark"]
                del line["accuracy"]["light"]
            rounds.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (group,) = grouped(load_runs([tmp_path]))
    assert group.domains == ("dark", "light")
    assert group.mark("last", "dark").count == 3
    assert group.mark("last", "light") == Spread(60.0, 0.0, 60.0, 60.0, 2)
    assert [each.count for each in group.curve("light")] == [2, 2]
    assert [each.count for each in group.curve()] == [3, 3]


def test_most_held_is_that_of_the_largest_net_of_any_client(tmp_path):
    folder = write_run(tmp_path / "a")
    rounds = folder / "rounds.jsonl"
    rounds.write_text(
        rounds.read_text().replace('"peak_parameters": 10', '"peak_parameters": 70', 1)
    )
    (group,) = grouped(load_runs([tmp_path]))
    assert group.most_held.mean == 70
