"""What records, encodings and trained models tell: a folder a subject.

statistics.py  confidence intervals, and records of seeded runs by study and row
report/        tables, figures and pages of studies
evidence/      claims of the literature judged by all records, and the page of results
encoding/      properties that must hold, the catalogue, and worked examples of one encoding
scorecard/     ideal properties of encodings, measured
vision/        trained vision transformers: attention, codes, filters, robustness, accuracy
cost/          memory and time of a decoder by length
"""
