"""Optional packages: which extra of posjax brings each one, and the command that installs it."""

import importlib.util
import pathlib
import re
import sys

# Modules as they are imported, by the extra in pyproject.toml.
EXTRAS = {
    "data": ("fsspec", "grain", "tensorflow_datasets", "importlib_resources", "PIL", "sklearn"),
    "experiments": ("ml_collections", "absl", "optax", "orbax", "scipy", "matplotlib", "rich", "tqdm"),
    "text": ("tokenizers", "pyarrow"),
    "gguf": ("gguf",),
    "hub": ("huggingface_hub",),
    "s3": ("s3fs",),
    "gs": ("gcsfs",),
    "atlas": ("altair", "vl_convert", "latex2mathml"),
    "tensorboard": ("tensorboardX",),
    "wandb": ("wandb",),
    "trackio": ("trackio",),
    "tf": ("tensorflow",),
    "tokamax": ("tokamax",),
    "tpu": ("libtpu",),
    "cuda": ("jax_cuda12_plugin", "jax_plugins"),
}
_BROUGHT_BY = {module: extra for extra, modules in EXTRAS.items() for module in modules}


def install_command(module: str) -> str | None:
    """Returns the command that installs a module (dotted, too); None where no extra brings it."""
    extra = _BROUGHT_BY.get(module.partition(".")[0])
    if extra is None:
        return None
    clone = pathlib.Path(__file__).parents[1]
    posjax = f"-e '{clone}[{extra}]'" if (clone / "pyproject.toml").is_file() else f"'posjax[{extra}]'"
    return f"pip install {posjax}"


def require(needing: str, *modules: str) -> None:
    """Checks that modules are installed, and imports none.

    Raises:
      ImportError: one is missing; the message names `needing`, the module and the command that installs it.
    """
    for module in modules:
        if not sys.modules.get(module) and importlib.util.find_spec(module) is None:
            raise ImportError(f"{needing} needs {module}: {install_command(module)}")


def message_of(error: BaseException) -> str:
    """Returns the message of an error in one line, of which long values keep their beginning and end.

    Errors of files have no number; an error of a missing module says how to install it.
    """
    text = str(error)
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name not in (None, "jax", "numpy", "posjax"):
        command = install_command(error.name)
        text = f"{error}: {command}" if command else text
    text = re.sub(r"(\S{100})\S{200,}(\S{40})", r"\1...\2", " ".join(text.split()))
    return re.sub(r"^(.{2000}).{200,}(.{400})$", r"\1 ... \2", text)
