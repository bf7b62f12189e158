"""Loads a language model and its parameters from a folder of transformers."""

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from posjax.gguf import SUFFIX
from posjax.hub import local
from posjax.pretrained import entries as maps
from posjax.pretrained.files import WeightsFile, read_json
from posjax.pretrained.language.families import find_family
from posjax.pretrained.language.family import COMPUTED, TRAINING, Family
from posjax.pretrained.language.gguf import open_gguf
from posjax.pretrained.parameters import expected_params, paths_of, refuse_overflow, tree_of
from posjax.spec import nearest

Shardings = jax.sharding.Sharding | Callable[[str, tuple[int, ...]], jax.sharding.Sharding]


def load(
    path: str | Path,
    *,
    dtype: Any = None,
    sharding: Shardings | None = None,
    ignore: Collection[str] = (),
    **overrides: Any,
) -> tuple[Any, dict[str, Any]]:
    """Loads a language model, with its parameters, that transformers or `save` wrote.

        model, params = load("Llama-3.2-1B", dtype=jnp.bfloat16)
        logits = model.apply(params, tokens, posjax.sites(T))

    Files are mapped into memory; each tensor is read once, laid out, converted and put on its device before the next one.

    Args:
      path: the folder with config.json and model.safetensors (or several shards and their index), or one of these files; the
        name of such a folder on the Hugging Face hub ("google/gemma-3-270m"); or a GGUF file, whose numbers are dequantised.
      dtype: type of activations and parameters; None: the file's. Parameters of encodings, sinks and tables are float32.
      sharding: one for all parameters, or a function of a parameter's path ("trunk/block_0/mlp/up/kernel") and shape; shards
        of other hosts are not kept. None: JAX's default device.
      ignore: unknown keys of config.json that, as the caller knows, change no numbers.
      overrides: values of fields that the files do not have: implementation, context, scan, remat, dropout, drop_path,
        attention_dtype. For another encoding see `posjax.models.replacing.with_encoding`.

    Returns:
      model, and {"params": tree of jax arrays}.

    Raises:
      FileNotFoundError: the files are missing.
      ValueError: the model_type or a key of the configuration is unknown, or a value is not computed here; a tensor is
        missing, left over or of another shape; a file is cut off or pickled.
    """
    free = sorted({*COMPUTED, *TRAINING} - {"dtype", "param_dtype"})
    for name in overrides:
        if name not in free:
            raise ValueError(f"{name} is read off the files; what may be given is dtype and {nearest(name, free)}")
    weights = open_gguf(Path(path)) if Path(path).suffix == SUFFIX else WeightsFile.of(path)
    if not weights.config:
        raise ValueError(f"there is no config.json beside {weights.path}, which describes its tensors")
    family = find_family(weights.config)
    try:
        model = family.made(weights.config, ignore)
    except ValueError as error:
        where = weights.path if weights.path.suffix == SUFFIX else weights.path.parent / "config.json"
        raise ValueError(f"{where}: {error}") from None
    tensors = weights.renamed(_names(family, weights))
    model = family.of_file(model, tensors.keys())
    tensors = _without_copies(family, model, tensors)
    dtype = jnp.dtype(_dtype(family, model, tensors) if dtype is None else dtype)
    model = model.with_fields(dtype=dtype, param_dtype=dtype, **overrides)
    _refuse_headless(family, model, tensors)
    return model, _parameters(family, model, tensors, sharding)


def configuration(path: str | Path) -> dict[str, Any]:
    """Returns the configuration of a folder, a file of weights, a hub's name or a GGUF file; {} without one."""
    path = local(path)
    if path.suffix == SUFFIX:
        return open_gguf(path).config
    return read_json((path if path.is_dir() else path.parent) / "config.json")


def _names(family: Family, weights: WeightsFile) -> dict[str, str]:
    """The family's names of tensors; the file may lack the prefix that all but a head's have."""
    held = {maps.respelt(name, family.respelt): name for name in weights if not re.fullmatch(family.ignored, name)}
    lacks = not any(name.startswith(family.prefix) for name in held)
    return {name if not lacks or name == family.tied else family.prefix + name: held[name] for name in held}


def _embedding(family: Family, model: Any) -> str:
    return next(entry.names[0] for entry in family.entries(model) if "token_embedding/embedding" in entry.paths)


def _dtype(family: Family, model: Any, tensors: WeightsFile) -> Any:
    """Returns the type of the token embedding, which stands for all tensors; float32 where numbers are dequantised."""
    if tensors.path.suffix == SUFFIX:
        return jnp.float32
    name = _embedding(family, model)
    dtype = jnp.dtype(tensors[name].dtype if name in tensors else jnp.float32)
    if not jnp.issubdtype(dtype, jnp.floating):
        raise ValueError(f"{name} of the file is of {dtype}, which is not a type of weights; give dtype=...")
    return dtype


def _without_copies(family: Family, model: Any, tensors: WeightsFile) -> WeightsFile:
    """Leaves out redundant tensors: a tied head, and the family's `copies`. A tied head alone is the token embedding."""
    copies = dict(family.copies) | ({family.tied: _embedding(family, model)} if model.tied_embedding else {})
    alone = {of: copy for copy, of in copies.items() if copy == family.tied in tensors and of not in tensors}
    copies = {copy: of for copy, of in copies.items() if copy in tensors and of in tensors}
    for copy, of in copies.items():
        one, other = tensors[copy], tensors[of]
        same = (one.shape, one.dtype) == (other.shape, other.dtype)
        # NaNs are equal if their bits are
        if not (same and (np.array_equal(one, other) or np.array_equal(one.view(np.uint8), other.view(np.uint8)))):
            if copy != family.tied:
                raise ValueError(f"{copy} and {of} are one tensor in this family, and differ in this file")
            raise ValueError(f"tie_word_embeddings is true, but {copy} and {of} differ: set it to false in config.json")
    return tensors.renamed({name: name for name in tensors if name not in {*copies, *alone.values()}} | alone)


def _refuse_headless(family: Family, model: Any, tensors: WeightsFile) -> None:
    """Raises for a file without a head whose configuration does not tie the head to the token embedding."""
    heads = [entry.names[0] for entry in family.entries(model) if entry.paths == ("head/kernel",)]
    if heads and heads[0] not in tensors and _embedding(family, model) in tensors:
        raise ValueError(f"the file holds no head, {heads[0]}: set tie_word_embeddings to true if it is the embedding")


def _parameters(family: Family, model: Any, tensors: WeightsFile, sharding: Shardings | None) -> dict[str, Any]:
    expected = expected_params(model)
    leaves = paths_of(expected)

    def put(path: str, array: np.ndarray) -> jax.Array:
        if leaves[path].dtype == jnp.float16:
            refuse_overflow(path, array, jnp.float16)
        # Copy: a parameter must not keep the file open. The device converts the type.
        if sharding is None:
            made = jax.device_put(maps.contiguous([array]))
        else:
            where = sharding if isinstance(sharding, jax.sharding.Sharding) else sharding(path, array.shape)
            made = jax.make_array_from_callback(array.shape, where, lambda index: maps.contiguous([array[index]]))
        return made.astype(leaves[path].dtype)

    shapes = {path: leaf.shape for path, leaf in leaves.items()}
    found = maps.read_entries(family.entries(model), tensors, shapes, family.sizes_of(model), put=put)
    return tree_of(expected, found)
