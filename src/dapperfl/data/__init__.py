"""Benchmarks, who holds which part of them, and how they become batches."""
