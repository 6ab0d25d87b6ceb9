"""A working folder: its recipe and artifacts fill in what a command was not told.

Whatever is picked is announced, never picked in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.artifacts.lookup import newest
from vitdeploy.artifacts.onnx_model import OnnxModel, read_onnx_model
from vitdeploy.artifacts.source import SourceDescription, description_in
from vitdeploy.demo import assets
from vitdeploy.errors import InputError, MissingDependencyError
from vitdeploy.images import ImageSet, scan
from vitdeploy.recipe import FILE_NAME, Recipe, read_recipe

if TYPE_CHECKING:
    from vitdeploy.models.load import ModelRequest

DEMO = "demo"


@dataclass(frozen=True)
class Workspace:
    """A folder, its recipe, and where to say what was picked."""

    folder: Path
    recipe: Recipe
    announce: Callable[[str], None]

    @property
    def output(self) -> Path:
        return self.folder / self.recipe.output

    def model_request(self, given: ModelRequest | None) -> ModelRequest:
        """The model named on the command line, else the recipe's. 'demo' is the embedded one."""
        if given is None:
            section = self.recipe.model
            if section is None:
                raise InputError(
                    "no model was named",
                    hint=f"name one (a timm name, a checkpoint, or 'demo'), or write {FILE_NAME}",
                )
            given = self._from_section()
            self.announce(f"model: {section.name} (from {FILE_NAME})")
        return _embedded(given) if given.name == DEMO else given

    def _from_section(self) -> ModelRequest:
        try:
            from vitdeploy.models.load import ModelRequest
        except ImportError as error:
            raise MissingDependencyError(
                f"this step needs the source model, and {error.name} is not installed",
                hint="pip install 'vitdeploy[torch]'",
            ) from error
        section = self.recipe.model
        assert section is not None  # the caller has looked
        described = section.name.endswith(".safetensors")
        return ModelRequest(
            name=str(self.folder / section.name) if described else section.name,
            checkpoint=None if section.checkpoint is None else self.folder / section.checkpoint,
            pretrained=section.pretrained,
            num_classes=section.num_classes,
            in_chans=section.in_chans,
            model_kwargs=dict(section.model_kwargs),
        )

    def graph(self, given: Path | None, *, precision: str | None = None) -> OnnxModel | None:
        """The graph named, else the newest one of the recipe's model; None where there is none."""
        path = given or self._newest("onnx", precision)
        if path is None:
            return None
        if given is None:
            self.announce(f"graph: {path} (the newest of this model)")
        return read_onnx_model(path)

    def engine(self, given: Path | None) -> Engine:
        """The engine named, else the newest one of the recipe's model."""
        path = given or self._newest("engine", None)
        if path is None:
            raise InputError(
                f"{self.output} holds no engine of this model",
                hint="run `vitdeploy build-engine` first, or name the .engine file",
            )
        if given is None:
            self.announce(f"engine: {path} (the newest of this model)")
        return read_engine(path)

    def checkpoint(self, source: SourceDescription) -> Path | None:
        """The recipe's checkpoint where it holds the very weights of `source`; else None."""
        path = self._own_checkpoint()
        description = None if path is None else description_in(path)
        if description is None or description.weights_digest != source.weights_digest:
            return None
        self.announce(f"checkpoint: {path} (from {FILE_NAME})")
        return path

    def calibration(self, given: Path | None, source: SourceDescription) -> ImageSet | None:
        """The calibration images given, else those the recipe holds for this very model."""
        return self._images(given, "calibration", source)

    def evaluation(self, given: Path | None, source: SourceDescription) -> ImageSet | None:
        """The evaluation images given, else those the recipe holds for this very model."""
        return self._images(given, "evaluation", source)

    def _images(
        self, given: Path | None, part: assets.Part, source: SourceDescription
    ) -> ImageSet | None:
        if given is not None:
            return scan(_folder_of(str(given), self.folder, part), labels=source.labels)
        entry = getattr(self.recipe.data, part)
        if entry is None or not self._is_recipe_model(source):
            return None
        self.announce(f"{part} images: {entry} (from {FILE_NAME})")
        return scan(_folder_of(entry, self.folder, part), labels=source.labels)

    def _is_recipe_model(self, source: SourceDescription) -> bool:
        name, digest = self._identity()
        return source.weights_digest == digest if digest is not None else source.name == name

    def _newest(self, kind: str, precision: str | None) -> Path | None:
        if self.recipe.model is None:
            return None
        name, digest = self._identity()
        return newest(
            self.output,
            "engine" if kind == "engine" else "onnx",
            name=name,
            weights_digest=digest,
            precision=precision,
        )

    def _identity(self) -> tuple[str, str | None]:
        """Name and, where a file says it without PyTorch, weights digest of the recipe's model."""
        section = self.recipe.model
        if section is None:
            return "", None
        path = self._own_checkpoint()
        description = None if path is None else description_in(path)
        if description is not None:
            return description.name, description.weights_digest
        return section.name, None

    def _own_checkpoint(self) -> Path | None:
        """The safetensors file that the recipe names as its model."""
        section = self.recipe.model
        if section is None:
            return None
        path = assets.CHECKPOINT if section.name == DEMO else self.folder / section.name
        return path if path.suffix == ".safetensors" and path.is_file() else None


def open_workspace(folder: Path, announce: Callable[[str], None]) -> Workspace:
    """The workspace of `folder`. Raises InputError for a recipe that cannot be read."""
    return Workspace(folder, read_recipe(folder), announce)


def _folder_of(entry: str, folder: Path, part: assets.Part) -> Path:
    return assets.images_folder(part) if entry == DEMO else folder / entry


def _embedded(given: ModelRequest) -> ModelRequest:
    return replace(given, name=str(assets.CHECKPOINT))
