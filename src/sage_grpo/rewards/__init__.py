"""Rewards behind the `Reward` contract, one scorer a file."""
