"""A static site to see, compare and choose positional encodings: `python -m experiments.atlas`.

site.py        the whole: pages, data, copied files
cards.py       each encoding's card, from its class, the goldens, the scorecard and the errata
sizes.py       scores and leads along the size of the model, the share of the data, the number of heads
forms.py       numbers that the page looks up as its sliders move
models.py      the encodings of the layers of published models
breaks.py      live bugs of other codebases, each as a picture with and without it
static/        the page itself: HTML, CSS and JavaScript, as browsers read them
"""
