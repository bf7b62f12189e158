"""What `python -m experiments.accelerator` is made of: the checks, what computes them, running them, their table."""
