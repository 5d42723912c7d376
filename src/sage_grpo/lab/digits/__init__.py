"""Four digits that drift over a black clip: the world, its generator, the experiment against real OCR."""
