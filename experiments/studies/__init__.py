"""Studies: rows are planned, trained, read, measured, recorded and shown.

plan.py          the rows that a config lists, and its checks
engine.py        the run of a study: trains, reads, measures and records each row
tuner.py         the choice of learning rates and other fields, on held-out data
readings.py      trained weights under another encoding or at another size
measures.py      what a row is scored by: one function each
weights.py       weights of this study, of another one, or of published files
long_context.py  texts of any length, read in chunks
images.py        images at any resolution
search.py        searches for factors of a rope
environment.py   versions and hardware of records, and the cache of compiled programs
"""
