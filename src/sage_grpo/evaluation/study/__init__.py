"""Blind side-by-side comparisons by people: the plan, the page for raters, the answers and the results."""
