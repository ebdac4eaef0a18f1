"""The mathematics of the paper, on tensors and nets; imports torch only."""
