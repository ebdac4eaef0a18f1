"""Configs, runs and their folders: what turns the library into experiments."""
