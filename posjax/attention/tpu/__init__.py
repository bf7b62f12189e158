"""Attention in one kernel for TPUs, with biases and their gradients; README.md tells its state."""
