"""Procedural video worlds with a known manifold. They import nothing of the rest of the package."""
