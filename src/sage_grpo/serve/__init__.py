"""Scorers as a service."""
