"""Measures of the ideal properties of encodings."""
