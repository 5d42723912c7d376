"""VideoAlign, a scorer built on Qwen2-VL: choice of frames, network, and conversion of the released checkpoint."""
