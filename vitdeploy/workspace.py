"""A working folder: its recipe and artifacts fill in what a command was not told.

Whatever is picked is announced, never picked in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from vitdeploy.artifacts.engine import Engine, read_engine
from vitdeploy.artifacts.files import reading
from vitdeploy.artifacts.lookup import made_from
from vitdeploy.artifacts.onnx_model import ModelDescription, OnnxModel, read_onnx_model
from vitdeploy.artifacts.source import SourceDescription, description_in
from vitdeploy.calibration.image_set import (
    CalibrationSet,
    choose,
    load_calibration_set,
    require_unseen,
)
from vitdeploy.demo import assets
from vitdeploy.errors import InputError
from vitdeploy.images import ImageSet, LabelOrder, scan
from vitdeploy.models.identity import seems_from
from vitdeploy.models.preflight import require_present
from vitdeploy.models.request import ModelRequest
from vitdeploy.progress import Progress
from vitdeploy.recipe import FILE_NAME, Recipe, read_recipe

DEMO = "demo"


@dataclass(frozen=True)
class Draw:
    """How calibration images are drawn; none may be among the `evaluation` images
    (None: the recipe's)."""

    count: int
    seed: int
    evaluation: Path | None = None


@dataclass(frozen=True)
class Labelling:
    """Where the labels of a flat folder stand, and how classes without a model's own order sort."""

    class_map: Path | None = None
    order: LabelOrder = "natural"


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
        """The model named on the command line, else the recipe's. 'demo' is the embedded one.

        Raises InputError where none is named, or files of it are not there.
        """
        if given is None:
            section = self.recipe.model
            if section is None:
                raise InputError(
                    "no model was named",
                    hint=f"name one (a timm name, a checkpoint, or 'demo'), or write {FILE_NAME}",
                )
            given = self._from_section()
            self.announce(f"model: {section.name} (from {FILE_NAME})")
        request = embedded(given)
        require_present(request)
        return request

    def _from_section(self) -> ModelRequest:
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

    def newest_engine(self, *, announced: bool = True) -> Path:
        """The newest engine file of the recipe's model (of all, without one).

        Raises InputError where there is none.
        """
        path = self._newest("engine", None)
        if path is None:
            what = "no engine" if self.recipe.model is None else "no engine of this model"
            raise InputError(
                f"{self.output} holds {what}",
                hint="run `vitdeploy build-engine` first, or name the .engine file",
            )
        if announced:
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

    def calibration(self, given: Path | None, source: SourceDescription | None) -> ImageSet | None:
        """The calibration images given, else those the recipe holds for this very model.

        `source` may be None where images are given.
        """
        return self._images(given, "calibration", source)

    def evaluation(
        self,
        given: Path | None,
        source: SourceDescription,
        labelling: Labelling | None = None,
    ) -> ImageSet | None:
        """The evaluation images given, else those the recipe holds for this very model."""
        return self._images(given, "evaluation", source, labelling or Labelling())

    def calibration_set(
        self, given: Path | None, source: SourceDescription, draw: Draw, progress: Progress
    ) -> CalibrationSet | None:
        """The set of the manifest given, else one drawn from the folder given and examined.

        Without either the recipe's entry is taken; None where there is none.
        Raises CalibrationError where an image is among the recipe's evaluation
        images, and as `choose` and `load_calibration_set`.
        """
        place = self._place(given, "calibration", source)
        if place is None:
            return None
        if not _is_manifest(place):
            return self._draw(place, source, draw, progress)
        loaded = load_calibration_set(place)
        self.announce(f"calibration images: {len(loaded)} of {loaded.images.root} ({place})")
        unseen = self._evaluation_to_avoid(draw.evaluation, source)
        if unseen is not None:
            require_unseen(loaded, unseen)
        return loaded

    def draw_calibration_set(
        self, given: Path | None, source: SourceDescription | None, draw: Draw, progress: Progress
    ) -> CalibrationSet:
        """A set drawn from the folder given, else from the recipe's, and examined.

        `source` is None where the classes of the model are not known. Raises as
        `choose`, and InputError where there is no folder to draw from.
        """
        place = self._place(given, "calibration", source)
        if place is None:
            raise InputError("no calibration images were named", hint="vitdeploy calibrate FOLDER")
        if _is_manifest(place):
            raise InputError(f"{place} is no folder", hint="name the folder of images to draw from")
        return self._draw(place, source, draw, progress)

    def _draw(
        self, folder: Path, source: SourceDescription | None, draw: Draw, progress: Progress
    ) -> CalibrationSet:
        images = scan(folder)
        unseen = self._evaluation_to_avoid(draw.evaluation, source)
        return choose(
            images,
            count=draw.count,
            seed=draw.seed,
            source=source,
            evaluation=unseen,
            progress=progress,
        )

    def _evaluation_to_avoid(
        self, given: Path | None, source: SourceDescription | None
    ) -> ImageSet | None:
        place = self._place(given, "evaluation", source, announced=False)
        if place is None:
            return None
        with reading(place, "image folder"):
            is_here = place.exists()
        if given is None and not is_here:
            # A machine that builds need not hold what the engine is judged on elsewhere.
            self.announce(f"evaluation images: {place} is not here, so overlap is not looked for")
            return None
        return scan(place)

    def _images(
        self,
        given: Path | None,
        part: assets.Part,
        source: SourceDescription | None,
        labelling: Labelling | None = None,
    ) -> ImageSet | None:
        folder = self._place(given, part, source)
        if folder is None:
            return None
        if part == "calibration" and _is_manifest(folder):
            return load_calibration_set(folder).images
        # Ranges ask for images, not for their classes.
        if labelling is None or source is None:
            images = scan(folder)
        else:
            images = self._labelled(folder, source, labelling)
        if images.empty_classes:
            self.announce(
                f"{part} images: {folder} has folders without images: "
                f"{', '.join(images.empty_classes)}"
            )
        return images

    def _place(
        self,
        given: Path | None,
        part: assets.Part,
        source: SourceDescription | None,
        *,
        announced: bool = True,
    ) -> Path | None:
        """Where images are: as given, else as the recipe says for its own model (None: `source`
        is not known to be another)."""
        entry = str(given)
        if given is None:
            entry = getattr(self.recipe.data, part)
            if entry is None or not (source is None or self.is_own(source)):
                return None
            if announced:
                self.announce(f"{part} images: {entry} (from {FILE_NAME})")
        return _folder_of(entry, self.folder, part)

    def _labelled(self, folder: Path, source: SourceDescription, labelling: Labelling) -> ImageSet:
        """The images with the model's labels; a model whose classes are only numbered
        takes the names of as many class folders, in their order, and says so."""
        numbered = source.labels == tuple(map(str, range(source.num_classes)))
        if numbered:
            images = scan(folder, class_map=labelling.class_map, order=labelling.order)
            if len(images.labels) == source.num_classes and images.labels != source.labels:
                self.announce(
                    f"the model's classes have no names: its classes 0 to "
                    f"{source.num_classes - 1} are taken to be {', '.join(images.labels[:8])}"
                    f"{' ...' if len(images.labels) > 8 else ''} (the folders, in their order)"
                )
                return images
        return scan(folder, labels=source.labels, class_map=labelling.class_map)

    def description(self) -> SourceDescription | None:
        """What the recipe's model says of itself; None where no file of it does."""
        path = self._own_checkpoint()
        return None if path is None else description_in(path)

    def knows(self, source: SourceDescription) -> bool:
        """Whether the recipe names this very model and images to judge it on."""
        return self.recipe.data.evaluation is not None and self.is_own(source)

    def is_own(self, source: SourceDescription) -> bool:
        """Whether this is the model that the recipe names."""
        return self.recipe.model is not None and self._recognition()(source)

    def _newest(self, kind: Literal["onnx", "engine"], precision: str | None) -> Path | None:
        recognised = self._recognition()

        def wanted(model: ModelDescription) -> bool:
            return precision in (None, model.precision) and recognised(model.source)

        found = made_from(self.output, kind, wanted, left_out=self.announce)
        return next(iter(found), None)

    def _recognition(self) -> Callable[[SourceDescription], bool]:
        """What tells the recipe's model (every model, without one) by the description of it.

        Weights do where a file says their digest without PyTorch, else names.
        """
        if self.recipe.model is None:
            return lambda source: True
        own = self.description()
        if own is not None:
            return lambda source: source.weights_digest == own.weights_digest
        request = self._from_section()
        return lambda source: seems_from(request, source)

    def _own_checkpoint(self) -> Path | None:
        """The safetensors file that the recipe names as its model, or as its weights."""
        section = self.recipe.model
        if section is None:
            return None
        for entry in (section.name, section.checkpoint):
            path = assets.CHECKPOINT if entry == DEMO else self.folder / (entry or "")
            with reading(path, "checkpoint"):
                if path.suffix == ".safetensors" and path.is_file():
                    return path
        return None


def open_workspace(folder: Path, announce: Callable[[str], None]) -> Workspace:
    """The workspace of `folder`. Raises InputError for a recipe that cannot be read."""
    return Workspace(folder, read_recipe(folder), announce)


def _is_manifest(place: Path) -> bool:
    """Whether calibration images are given as a drawn set, not as a folder."""
    with reading(place, "calibration manifest"):
        return place.suffix == ".json" and not place.is_dir()


def _folder_of(entry: str, folder: Path, part: assets.Part) -> Path:
    return assets.images_folder(part) if entry == DEMO else folder / entry


def embedded(given: ModelRequest) -> ModelRequest:
    """The request with 'demo' read as the embedded checkpoint; any other as it is."""
    return replace(given, name=str(assets.CHECKPOINT)) if given.name == DEMO else given
