"""What trained vision transformers have learned of positions."""
