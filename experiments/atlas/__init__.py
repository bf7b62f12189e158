"""A static site to see, compare and choose positional encodings: `python -m experiments.atlas`.

site.py        writes the site: pages, data, static files
cards.py       the card of each encoding, from its class, the goldens, the scorecard and the errata
breaks.py      live bugs of other codebases, each as a picture with and without the bug
static/        the page itself: HTML, CSS and JavaScript, as browsers read them
"""
