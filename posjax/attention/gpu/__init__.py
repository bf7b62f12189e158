"""Attention in one kernel for Hopper GPUs, README.md beside this file says what was seen of it."""
