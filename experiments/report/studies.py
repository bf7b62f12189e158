"""The studies of configs/: a config, the claims and questions that its records decide, and the command that runs it."""

import functools
import importlib
import pathlib
from collections.abc import Iterator
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from experiments.report.claims import Claim, Question

_HOME = pathlib.Path(__file__).parents[2]


class KnownStudy(NamedTuple):
    """A study of configs/; its results lie, or will lie, in results/NAME.

    Attributes:
      path: path of the config, perhaps with its argument: "configs/papers/heads.py".
      claims: claims that its records decide.
      questions: users' questions that its records answer.
    """

    name: str
    path: str
    config: ConfigDict
    claims: tuple[Claim, ...]
    questions: tuple[Question, ...]

    @property
    def has_parts(self) -> bool:
        """Whether its records lie in a folder for each model: nothing is trained, and a command of its own measures each."""
        return "command" in self.config.page

    @property
    def command(self) -> str:
        page = self.config.page
        if self.has_parts:
            return f"python -m experiments.{page.command}"
        given = f"--config={self.path} {page.get('arguments', '')}".strip()
        return f"python -m experiments.ablate {given} --workdir=results/{self.name}"


@functools.cache
def studies() -> list[KnownStudy]:
    """All studies of configs/, papers last; a config is a study if it has a page."""
    files = [*sorted((_HOME / "configs").glob("*.py")), *sorted((_HOME / "configs" / "papers").rglob("*.py"))]
    return [study for file in files for study in _studies_of(file)]


def study_of(name: str) -> KnownStudy | None:
    """Returns the study of configs/ of a name; None for a user's own study."""
    return next((study for study in studies() if study.name == name), None)


def _studies_of(file: pathlib.Path) -> Iterator[KnownStudy]:
    path = file.relative_to(_HOME)
    module: Any = importlib.import_module(".".join(path.with_suffix("").parts))
    for argument in getattr(module, "ARGUMENTS", ("",)):
        config = module.get_config(argument) if argument else module.get_config()
        if "page" not in config:
            continue
        claims, questions = (
            tuple(each for each in getattr(module, name, ()) if each.folder == config.name)
            for name in ("CLAIMS", "QUESTIONS")
        )
        yield KnownStudy(config.name, f"{path}:{argument}" if argument else str(path), config, claims, questions)
