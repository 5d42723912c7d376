"""Video models behind the `VideoModel` contract, one per file."""
