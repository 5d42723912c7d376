"""The laboratory's world of one coloured shape that moves: its clips, its generator, its rewards and the experiment."""
