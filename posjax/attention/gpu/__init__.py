"""Attention in one kernel for Hopper GPUs; README.md tells its state."""
