"""ImageBind: what it looks at and listens to, its network, and the way from the released checkpoint."""
