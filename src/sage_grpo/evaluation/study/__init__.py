"""Blind side-by-side comparisons by people: the plan, the page that asks, the answers, and what they come to."""
