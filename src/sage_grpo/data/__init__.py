"""Where prompts come from: files of any length, datasets, lists."""
