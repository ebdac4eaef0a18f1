"""How many runs fit: the rule, and where its numbers come from."""

import json
import subprocess
import sys

import pytest

from dapperfl.lab.schedule.memory import HOST, host_free, pools, room


@pytest.mark.parametrize(
    ("free", "peak", "held", "more"),
    [
        (0, None, [], 1),  # the first always starts
        (1000, None, [0], 0),  # the second waits for the first to be measured
        (0, 100, [], 1),  # one may always run, else nothing would ever end
        (1000, 100, [], 9),  # 110 with headroom; nine are 990
        (1000, 100, [110], 9),  # one that has grown up needs nothing more
        (1000, 100, [10], 8),  # 100 are promised to it: 900 // 110
        (1000, 100, [0, 0], 7),  # two that have just started: 780 // 110
        (220, 100, [0, 0], 0),
        (219, 100, [0], 0),
        (220, 100, [0], 1),
        (50, 100, [0, 0], 0),  # less than promised
        (1000, 100, [500], 9),  # one that takes more gives nothing to others
    ],
)
def test_as_many_runs_start_as_fit_beside_what_is_promised(free, peak, held, more):
    assert room(free, peak, held) == more


def test_a_run_on_a_gpu_takes_memory_of_the_machine_as_well():
    assert pools("cpu") == (HOST,)
    assert pools("cuda:1") == (HOST, "cuda:1")


MEASURING = """
import json, torch
from dapperfl.lab.schedule.memory import HOST, measured
before = measured("cpu")[HOST]
block = torch.ones(40_000_000)  # 160 MB
during = measured("cpu")[HOST]
del block
after = measured("cpu")[HOST]
print(json.dumps([before.now, during.now, after.now, after.peak, after.free]))
"""


def test_a_process_measures_itself():
    # In a new process: an old one may have such a block to spare.
    done = subprocess.run([sys.executable, "-c", MEASURING], capture_output=True, check=True)
    before, during, after, peak, free = json.loads(done.stdout)
    assert during - before > 140e6
    assert after - before < 20e6  # given back
    assert peak > during - 5e6  # the kernel counts in batches
    assert 0 < free < 1 << 50


def _write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_without_groups_the_machine_decides(tmp_path):
    _write(tmp_path, {"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    3000 kB\n"})
    assert host_free(tmp_path) == 3000 * 1024


def test_a_container_may_have_less_than_the_machine(tmp_path):
    group = "sys/fs/cgroup/pod"
    _write(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 3000 kB\n",
            "proc/self/cgroup": "0::/pod/task\n",
            f"{group}/task/memory.max": "max\n",
            f"{group}/task/memory.current": "100\n",
            f"{group}/memory.max": "1000000\n",
            f"{group}/memory.current": "400000\n",
            f"{group}/memory.stat": "anon 1\ninactive_file 50000\nactive_file 7\n",
        },
    )
    assert host_free(tmp_path) == 1_000_000 - 400_000 + 50_000


def test_a_group_of_the_first_kind_limits_too(tmp_path):
    _write(
        tmp_path,
        {
            "proc/meminfo": "MemAvailable: 3000 kB\n",
            "proc/self/cgroup": "4:cpu,memory:/job\n3:pids:/\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "70000\n",
            "sys/fs/cgroup/memory/memory.usage_in_bytes": "90000\n",
        },
    )
    assert host_free(tmp_path) == 0


def test_a_system_that_says_nothing_limits_nothing(tmp_path):
    assert host_free(tmp_path) > 1 << 60
