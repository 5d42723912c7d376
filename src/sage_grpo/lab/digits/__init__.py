"""The laboratory's world of four-digit numbers: its clips, generator, and experiment with real OCR as reward."""
