"""Readers of data as it is published: one file per format or data set. Nothing read is trusted."""
