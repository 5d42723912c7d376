"""The paper's tables and figures as commands, over any recipe."""
