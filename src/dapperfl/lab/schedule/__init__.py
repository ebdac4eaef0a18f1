"""Many runs as processes that share the devices and the memory of one machine.

`run_all` takes a list of jobs and returns their outcomes in the same order. What is finished is not
run again, what was interrupted goes on, and a run that fails takes no other with it.
"""

from dapperfl.lab.schedule.jobs import Job, Outcome, Progress
from dapperfl.lab.schedule.scheduler import run_all

__all__ = ["Job", "Outcome", "Progress", "run_all"]
