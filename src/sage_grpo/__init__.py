"""SAGE-GRPO: stable GRPO post-training for flow-matching video generators."""

__version__ = "0.1.0"
