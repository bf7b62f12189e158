"""Ideal properties of encodings, measured as one wishes for them."""
