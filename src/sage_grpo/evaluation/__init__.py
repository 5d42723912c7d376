"""Checkpoints held against each other: videos of the same prompts and seeds, scored, compared in pairs, tabled."""
