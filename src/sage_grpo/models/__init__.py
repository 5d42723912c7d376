"""Video models behind the `VideoModel` contract, one a file."""
