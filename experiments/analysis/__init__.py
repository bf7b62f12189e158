"""Trained models: attention, codes, filters, robustness and accuracy of vision transformers; a read-out of positions."""
