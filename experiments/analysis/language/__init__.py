"""Language models and their positions: frequencies, heads, shifts, massive values, and parts that may go."""
