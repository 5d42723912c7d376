"""Rewards behind the `Reward` contract, one scorer per file."""
