"""What a file says of its numbers that makes plain sRGB a doubtful reading of them."""

from io import BytesIO

from PIL import Image, ImageCms

_TRANSFERS = {8: "linear", 16: "PQ", 18: "HLG"}  # of ITU-T H.273, those that sRGB numbers do not look like
_SRGB_GAMMA, _LIKE_SRGB = 1 / 2.2, 0.1  # what a gAMA chunk says of sRGB, and how far it may be from that
_SAME = 8  # of 255, by which a profile moves a colour that acts as sRGB's


def colour_doubts(image: Image.Image, data: bytes) -> list[str]:
    """A sentence for each sign in an opened image of the file `data`."""
    doubts = []
    if transfer := _TRANSFERS.get(_transfer(image, data)):
        doubts.append(
            f"The file says that its numbers are {transfer}: they were not converted, and are read as sRGB."
        )
    gamma = image.info.get("gamma")
    if (
        image.format == "PNG"
        and gamma
        and not doubts
        and not {"srgb", "icc_profile"} & image.info.keys()
        and abs(gamma - _SRGB_GAMMA) > _LIKE_SRGB
    ):
        doubts.append(
            f"The file says that its numbers have a gamma of {gamma:g} (sRGB: about {_SRGB_GAMMA:.2f}): they"
            " were not converted, and are read as sRGB."
        )
    if image.format == "JPEG" and image.mode == "CMYK" and "adobe" not in image.info:
        doubts.append(
            "The CMYK pixels have no Adobe marker, which says whether full ink is stored as 0 or as 255: the"
            " former was taken; if the scores look like those of a negative, save the picture as RGB."
        )
    return doubts


def acts_as_srgb(profile: bytes) -> bool:
    """Whether an ICC profile leaves colours as they are: one called "Linear sRGB" does not."""
    colours = Image.new("RGB", (5, 1))
    for x, colour in enumerate([(64, 64, 64), (128, 128, 128), (200, 60, 60), (60, 200, 60), (60, 60, 200)]):
        colours.putpixel((x, 0), colour)
    try:
        converted = ImageCms.profileToProfile(
            colours, ImageCms.ImageCmsProfile(BytesIO(profile)), ImageCms.createProfile("sRGB")
        )
    except (ImageCms.PyCMSError, OSError):  # a profile of grey, say
        return True
    assert converted is not None
    return all(abs(a - b) <= _SAME for a, b in zip(colours.tobytes(), converted.tobytes(), strict=True))


def _transfer(image: Image.Image, data: bytes) -> int:
    """The transfer characteristics that a PNG's cICP chunk, or an AVIF's or HEIC's colr box, has; 0 where
    there are none."""
    if image.format == "PNG":
        at = data.find(b"cICP", 0, data.find(b"IDAT"))
        return data[at + 5] if at >= 0 else 0
    if image.format in ("AVIF", "HEIF"):
        at = data.find(b"colrnclx")
        return int.from_bytes(data[at + 10 : at + 12]) if at >= 0 else 0
    return 0
