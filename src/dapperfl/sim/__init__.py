"""Federated training on one machine."""
