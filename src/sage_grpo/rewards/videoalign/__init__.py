"""VideoAlign: its frames, its model, and the way from the released checkpoint."""
