"""The same methods on real devices, over Flower; the only folder that imports flwr."""
