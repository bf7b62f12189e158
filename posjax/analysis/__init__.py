"""From the records of seeded runs to intervals (stats), tables (table), figures (plots) and one page (report).

Import the module you need: only ``plots`` and ``report`` load matplotlib.
"""
