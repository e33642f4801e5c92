"""The pictures of one assessment as they are judged, and where the regions of its question lie in
them."""

from collections.abc import Mapping
from pathlib import Path

from PIL import Image

from agentic_iqa_local.config import ImageSettings
from agentic_iqa_local.images.files import ImageError, within_memory
from agentic_iqa_local.images.frames import moved, without_frames
from agentic_iqa_local.images.reading import LoadedImage, load_image, load_pair
from agentic_iqa_local.images.references import doubts
from agentic_iqa_local.state import Box

MARKED = "marked region"  # what a box without a name is called where the query names no region
_IDENTICAL = (
    "the picture has the same pixels as its reference: nothing was lost against it, so tools that"
    " compare have their best score without measuring"
)


def load_pictures(
    limits: ImageSettings, image_path: str | Path, reference_path: str | Path | None = None
) -> tuple[LoadedImage, LoadedImage | None]:
    """A picture and its reference within a configuration's limits, without their frames. Raises
    ImageError."""
    options = limits.model_dump(exclude={"max_crops"})
    with within_memory(image_path):
        if reference_path is None:
            return without_frames(load_image(image_path, **options))
        return without_frames(*load_pair(image_path, reference_path, **options))


class Pictures:
    """A picture and its reference, opened. `boxes` has the regions by name, in pixels of `image`.
    Raises ImageError."""

    def __init__(self, limits: ImageSettings, image_path: str, reference_path: str | None):
        self.limits = limits
        self.image, self.reference = load_pictures(limits, image_path, reference_path)
        self.has_reference = self.reference is not None
        self.identical = self.reference is not None and self.image.pixels == self.reference.pixels
        self.whole: Box = (0, 0, self.image.width, self.image.height)
        self.content = moved(self.whole, self.image.offset)  # in the upright picture
        self.boxes: dict[str, Box] = {}

    def warnings(self) -> list[str]:
        """What a user must know of the files."""
        lines = list(self.image.warnings)
        if self.reference is None:
            return lines
        for line in self.reference.warnings:
            lines.append(f"the reference {self.reference.path}: {line}")
        if self.identical:
            lines.append(_IDENTICAL)
        return lines + doubts(self.image.pixels, self.reference.pixels)

    def parts(self, box: Box | None = None) -> list[Image.Image]:
        """The picture and its reference if there is one, or a region of them."""
        whole = [self.image.pixels]
        if self.reference is not None:
            whole.append(self.reference.pixels)
        return whole if box is None else [pixels.crop(box) for pixels in whole]

    def close(self) -> None:
        """Frees the pixels now: an assessment's parts refer to each other, so Python would keep its
        picture until it next looks for circles, which may be dozens of pictures later."""
        for pixels in self.parts():
            pixels.close()

    def holds(self, box: Box) -> bool:
        """Whether a box, in pixels of the upright picture, is a part of it without its frame that
        is large enough to be judged."""
        left, top, right, bottom = self.content
        inside = left <= box[0] and top <= box[1] and box[2] <= right and box[3] <= bottom
        return inside and min(box[2] - box[0], box[3] - box[1]) >= self.limits.min_side

    def locate(self, boxes: Mapping[str, Box]) -> None:
        """Takes up where regions lie, by their names in pixels of the upright picture. Raises
        ImageError for a box that the picture does not hold."""
        self.boxes = {}
        left, top = self.image.offset
        for name, box in boxes.items():
            if not self.holds(box):
                within = f"{','.join(map(str, self.content))} with sides of {self.limits.min_side}"
                raise ImageError(
                    f"{self.image.path}: {f'box {name}'.strip()}: expected within {within} pixels or"
                    f" more, got {','.join(map(str, box))}"
                )
            self.boxes[name or MARKED] = moved(box, (-left, -top))
