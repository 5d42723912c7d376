"""Commands that reproduce the paper's tables and figures, with any recipe."""
