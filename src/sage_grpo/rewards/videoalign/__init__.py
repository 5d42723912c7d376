"""VideoAlign: its frames, its model, and the conversion of the released checkpoint."""
