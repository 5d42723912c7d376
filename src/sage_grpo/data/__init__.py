"""Sources of prompts: files of any length, datasets and lists."""
