"""What `python -m experiments.benchmark` is made of: workers, contenders on either side, suites, tables."""
