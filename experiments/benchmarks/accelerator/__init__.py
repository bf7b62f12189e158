"""The suite `accelerator` of `experiments.benchmark`: its checks, the worker's side, running them, and their table."""
