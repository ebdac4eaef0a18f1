"""What every deployment shares: the epoch loop, evaluation, statistics, checkpoints."""
