"""Checks of the shapes and dtypes in signatures, for the import hook of jaxtyping."""

import functools

from beartype import BeartypeConf, beartype

# An int is welcome where a float is asked for (PEP 484's numeric tower), as in interpolate(factor=2).
_CHECK = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function):
    """Returns the function with its checks, which are made at the first call: a process calls few of the functions."""
    check = functools.cache(lambda: _CHECK(function))

    @functools.wraps(function)
    def call(*arguments, **options):
        return check()(*arguments, **options)

    return call
