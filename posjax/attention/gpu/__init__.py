"""Attention in one kernel for Hopper GPUs; README.md says what was seen of it."""
