"""Checkpoints compared: videos of the same prompts and seeds, scored, compared in pairs, tabled."""
