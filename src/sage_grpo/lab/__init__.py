"""The laboratory: small video generators for made-up worlds, and what it takes to post-train and judge them.

A world is a kind of clip that is known exactly, such as one coloured shape that moves. It has prompts, a renderer,
rewards, and held-out measures, which compare videos before and after post-training.
"""
