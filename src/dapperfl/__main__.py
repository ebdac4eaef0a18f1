"""`python -m dapperfl`, for where the command is not on the path."""

from dapperfl.cli import main

main()
