"""Studies: rows are planned, trained, measured, recorded and shown."""
