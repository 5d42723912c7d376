"""Scores from other machines: the client of a fleet, its wire format, and the reward that uses it."""
