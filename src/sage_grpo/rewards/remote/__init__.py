"""Scores from elsewhere: the client of a fleet, its wire format, the reward that asks it."""
