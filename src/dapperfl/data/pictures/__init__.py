"""Somebody's own picture files: finding them, decoding them, and not doing so twice."""
