"""Attention in one kernel for Hopper GPUs, which has never run on one: README.md beside this file."""
