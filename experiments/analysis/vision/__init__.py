"""Analysis of the positions that trained vision transformers have learned."""
