"""Tables, figures and pages of the records of studies."""
