"""Scores from other machines: the client of a scoring server, its wire format, and the reward that uses them."""
