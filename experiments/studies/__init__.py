"""Studies: rows are planned, trained, measured, recorded and shown.

study.py          the engine, and `Study`: what a new kind of study says of itself
ablation.py       rows differ in their config; training's own scores are what is measured
sweeps.py         every row of an ablation at several values of some fields
search.py         LongRoPE's search for factors
position_probes.py  whether tokens tell where they stand, layer by layer
tuning.py         the learning rate of every training, chosen by data that are not reported
resolutions.py    ViTs tested at other resolutions, by policy; other_sizes.py measures them
extrapolation.py  decoders read at other lengths; long_context.py measures them
records.py        one line of results.jsonl for each seed of a row: one writer, one reader
again.py          tables, figures and page once more, from records
results.py        all studies of a folder of results, and the page that judges them
running.py        progress, and the request to stop
environment.py    versions and hardware for records, and the cache of compiled programs
"""
