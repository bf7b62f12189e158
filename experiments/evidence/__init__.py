"""What the committed records say of the literature: claims as data, verdicts computed, one page.

numbers.py   numbers of a text that come from records, told apart from any others
contrast.py  linear contrasts of cells of results, written as sums and differences
inventory.py the folders of results: tables, regime, how each was run
claims.py    what papers found, where, and the contrast of ours that decides it
verdicts.py  holds, does not, or not separable, by Holm's correction within a study
matrix.py    encodings by tasks, as differences to no encoding
advice.py    which encoding to take, by situation
page.py      results/README.md
"""
