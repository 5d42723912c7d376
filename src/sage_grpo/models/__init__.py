"""Video models behind the `VideoModel` protocol, one a file."""
