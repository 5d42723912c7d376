"""Devices, and the processes that share a run: their layout, shards, checkpoints and failures."""
