"""Every encoding, a file for each family: importing this package registers them.

`posjax.encodings.rope` is the class that specs call "rope", and so for every name. A new file needs no line here.
"""

import importlib
import pkgutil

from posjax.spec import PATTERNS, REGISTRY

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = sorted(REGISTRY | PATTERNS)
globals().update(REGISTRY | PATTERNS)
