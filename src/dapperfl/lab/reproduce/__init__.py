"""Every table and figure of the paper, by name: what `dapperfl reproduce` does, as functions.

`plans` says which runs a name needs, `work` has them done, `paper` holds what the paper prints; a
module for each kind of result (`accuracy`, `footprint`, `ablation`, `sweeps`, `curves`, `search`)
turns rows into tables and figures. They need the CSV files alone.
"""
