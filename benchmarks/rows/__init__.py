"""One file per part of the bench: `measure(options)` yields rows, and a line where it skips one."""
