"""Trained models and their positions: one look into decoders, encoders and ViTs, findings as records, and a page."""
