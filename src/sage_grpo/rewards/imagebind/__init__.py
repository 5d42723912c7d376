"""ImageBind: its inputs, its network, its scorer, and the conversion of the released checkpoint."""
