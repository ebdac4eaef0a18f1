"""Every error a user can meet, as one small tree.

DapperFLError
├── ConfigError      a key, a value or a file of the configuration is wrong
├── TraceError       a net whose channels cannot be traced
├── BudgetError      no submodel is small enough for the asked rho
├── MessageError     a message between server and client does not fit the net
├── DataError        a benchmark is missing, damaged or too small
├── CheckpointError  a run folder cannot be read, or must not be overwritten
└── RunError         a run cannot go on

Each message names the value, the place and what to do next.
"""


class DapperFLError(Exception):
    """Base of all errors raised on purpose by this package."""


class ConfigError(DapperFLError):
    """A key, a value or a file of the configuration is wrong."""


class TraceError(DapperFLError):
    """A net's channels cannot be traced."""


class BudgetError(DapperFLError):
    """No submodel is small enough for the asked rho."""


class MessageError(DapperFLError):
    """A message between server and client does not fit the net."""


class DataError(DapperFLError):
    """A benchmark is missing, damaged or too small."""


class CheckpointError(DapperFLError):
    """A run folder cannot be read, or must not be overwritten."""


class RunError(DapperFLError):
    """A run cannot go on."""


_NO_MEMORY = ("out of memory", "can't allocate memory", "alloc_failed")


def is_of_memory(error: BaseException | None) -> bool:
    """Say whether an error, or what it came from, is a lack of memory."""
    if error is None:
        return False
    text = str(error).lower()
    by_name = isinstance(error, RuntimeError) and any(words in text for words in _NO_MEMORY)
    return isinstance(error, MemoryError) or by_name or is_of_memory(error.__cause__)
