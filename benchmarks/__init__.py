"""Measurements: `make bench` (bench.py), and the accuracy of all methods (methods.py)."""
