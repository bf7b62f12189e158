"""Pages of studies, from their records.

statistics.py   intervals, p-values and verdicts on sums of cells; a cell holds a metric of a row, by seed
table.py        a study's rows in columns, each tested against the best and against `none`
figures.py      the figures that the metrics of a study ask for; paper.py adds published numbers beside ours
trends.py       rows along an axis that studies vary, and their leads
claims.py       claims of papers and users' questions, as data in configs/, and verdicts on them
exports.py      tables in LaTeX, records as CSV
page.py         all of these as Markdown, results/NAME/README.md; html.py renders it
overview.py     results/README.md, over all studies of configs/ (studies.py); scorecard.py shows the scorecard
"""
