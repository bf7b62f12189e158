"""Positions in trained vision transformers."""
