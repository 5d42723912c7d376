"""Scorers outside a run: what there is, scores of a folder of videos, and how scores are gamed."""
