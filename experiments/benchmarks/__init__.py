"""The parts of `python -m experiments.benchmark`: workers, contenders on either side, suites, tables."""
