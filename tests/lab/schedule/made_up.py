"""A machine with two GPUs that exists in this file only, and its workers."""

from collections.abc import Iterator

from dapperfl.lab.schedule.memory import HOST, Memory
from dapperfl.lab.schedule.worker import Finished, Message, Rounds, Task

GB = 1 << 30
SUMMARY = {"rounds": 3}


class Machine:
    """Each run takes 4 GB of its GPU's 20, and 1 GB of the machine's 100."""

    def __init__(self) -> None:
        self.workers: list[MadeUp] = []
        self.most: dict[str, int] = {}  # runs at a time, by device
        self.fate: dict[str, list[Message]] = {}  # how a run ends, by its folder's name

    def worker(self, device: str, together: int) -> "MadeUp":
        self.workers.append(MadeUp(device, together, self))
        return self.workers[-1]

    def busy(self, device: str) -> int:
        living = [each for each in self.workers if not each.closed]
        return sum(each.busy and each.device == device for each in living)

    def memory(self, device: str) -> dict[str, Memory]:
        found = {HOST: Memory(GB, GB, 100 * GB)}
        if device != "cpu":
            grown = [each for each in self.workers if each.grown and not each.closed]
            taken = 4 * GB * sum(each.device == device for each in grown)
            found[device] = Memory(4 * GB, 4 * GB, 20 * GB - taken)
        return found

    def tasks(self) -> list[Task]:
        return [task for worker in self.workers for task in worker.tasks]

    def devices(self) -> list[str]:
        return sorted(task.config.engine.device for task in self.tasks())


class MadeUp:
    """What the scheduler needs of a worker; its runs have a round in each of which it grows."""

    def __init__(self, device: str, together: int, machine: Machine) -> None:
        self.device, self.together, self.machine = device, together, machine
        self.job, self.busy = -1, False
        self.memory: dict[str, Memory] = {}
        self.tasks: list[Task] = []
        self.grown = self.closed = False

    def begin(self, job: int, task: Task) -> None:
        self.job, self.busy = job, True
        self.tasks.append(task)
        most = self.machine.most
        most[self.device] = max(self.machine.busy(self.device), most.get(self.device, 0))
        self._script = self._messages(task)

    def _messages(self, task: Task) -> Iterator[list[Message]]:
        yield []
        self.grown = True
        yield [Rounds(1, 10.0, 10.0, 1.0, self.machine.memory(self.device))]
        yield []
        end = Finished(SUMMARY, self.machine.memory(self.device))
        yield self.machine.fate.get(task.out.name, [end])

    def messages(self) -> tuple[list[Message], bool]:
        return (next(self._script) if self.busy else []), True

    def sources(self) -> list[int]:
        return []

    def output(self) -> list[str]:
        return []

    def close(self) -> None:
        assert not self.closed
        self.closed = True
