"""Measurements of speed, memory and bytes: `make bench`."""
