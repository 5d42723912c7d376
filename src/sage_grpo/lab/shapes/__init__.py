"""One coloured shape moving across a black clip: the world, its generator, its rewards, the experiment."""
