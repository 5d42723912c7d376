"""Rewards behind the `Reward` protocol, one scorer a file."""
