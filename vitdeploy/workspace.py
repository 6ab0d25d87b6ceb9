"""A working folder: its recipe and artifacts fill in what a command was not told.

Whatever is picked is announced, never picked in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.artifacts.files import reading
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
        return embedded(given)

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
        path = self.folder / section.name
        local = path.suffix == ".safetensors" or (path / "config.json").is_file()
        return ModelRequest(
            name=str(path) if local else section.name,
            checkpoint=None if section.checkpoint is None else self.folder / section.checkpoint,
            pretrained=section.pretrained,
            num_classes=section.num_classes,
            in_chans=section.in_chans,
            model_kwargs=dict(section.model_kwargs),
            task=section.task,
            mean=section.mean,
            std=section.std,
            interpolation=section.interpolation,
            crop_pct=section.crop_pct,
            crop_mode=section.crop_mode,
        )

    def graph(self, given: Path | None, *, precision: str | None = None) -> OnnxModel | None:
        """The graph named, else the newest one of the recipe's model; None where there is none.

        Where no recipe names a model, the newest of all.
        """
        path = given or self._newest("onnx", precision)
        if path is None:
            return None
        if given is None:
            self.announce(f"graph: {path} (the newest {self._of_which})")
        return read_onnx_model(path)

    def engine(self, given: Path | None) -> Engine:
        """The engine named, else the newest one of the recipe's model (of all, without one)."""
        return read_engine(given or self.newest_engine())

    def newest_engine(self) -> Path:
        """The newest engine file of the recipe's model (of all, without one), announced.

        Raises InputError where there is none.
        """
        path = self._newest("engine", None)
        if path is None:
            what = "no engine" if self.recipe.model is None else "no engine of this model"
            raise InputError(
                f"{self.output} holds {what}",
                hint="run `vitdeploy build-engine` first, or name the .engine file",
            )
        self.announce(f"engine: {path} (the newest {self._of_which})")
        return path

    @property
    def _of_which(self) -> str:
        return "here" if self.recipe.model is None else "of this model"

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
        entry = str(given)
        if given is None:
            entry = getattr(self.recipe.data, part)
            if entry is None or not self._is_recipe_model(source):
                return None
            self.announce(f"{part} images: {entry} (from {FILE_NAME})")
        folder = _folder_of(entry, self.folder, part)
        # Ranges ask for images, not for their classes.
        images = scan(folder) if part == "calibration" else self._labelled(folder, source)
        if images.empty_classes:
            self.announce(
                f"{part} images: {folder} has folders without images: "
                f"{', '.join(images.empty_classes)}"
            )
        return images

    def _labelled(self, folder: Path, source: SourceDescription) -> ImageSet:
        """The images with the model's labels; a model whose classes are only numbered
        takes the names of as many class folders, in their order, and says so."""
        numbered = source.labels == tuple(map(str, range(source.num_classes)))
        if numbered:
            images = scan(folder)
            if len(images.labels) == source.num_classes and images.labels != source.labels:
                self.announce(
                    f"the model's classes have no names: its classes 0 to "
                    f"{source.num_classes - 1} are taken to be {', '.join(images.labels[:8])}"
                    f"{' ...' if len(images.labels) > 8 else ''} (the folders, in their order)"
                )
                return images
        return scan(folder, labels=source.labels)

    def knows(self, source: SourceDescription) -> bool:
        """Whether the recipe names this very model and images to judge it on."""
        return self.recipe.data.evaluation is not None and self._is_recipe_model(source)

    def _is_recipe_model(self, source: SourceDescription) -> bool:
        name, digest = self._identity()
        return source.weights_digest == digest if digest is not None else source.name == name

    def _newest(self, kind: str, precision: str | None) -> Path | None:
        name, digest = self._identity()
        return newest(
            self.output,
            "engine" if kind == "engine" else "onnx",
            name=None if self.recipe.model is None else name,
            weights_digest=digest,
            precision=precision,
            left_out=self.announce,
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
        with reading(path, "checkpoint"):
            return path if path.suffix == ".safetensors" and path.is_file() else None


def open_workspace(folder: Path, announce: Callable[[str], None]) -> Workspace:
    """The workspace of `folder`. Raises InputError for a recipe that cannot be read."""
    return Workspace(folder, read_recipe(folder), announce)


def _folder_of(entry: str, folder: Path, part: assets.Part) -> Path:
    return assets.images_folder(part) if entry == DEMO else folder / entry


def embedded(given: ModelRequest) -> ModelRequest:
    """The request with 'demo' read as the embedded checkpoint; any other as it is."""
    return replace(given, name=str(assets.CHECKPOINT)) if given.name == DEMO else given
