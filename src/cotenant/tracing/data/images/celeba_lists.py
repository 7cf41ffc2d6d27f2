"""Lists of the CelebA data set: attributes, parts and identities of its images, as texts or, as on Kaggle, as CSV.

`list_attr_celeba.txt` has the number of images, the names of 40 attributes, and a line for each image. Scripts take
their parts by the numbers of images, so there are as many lines as in the data set; the images are made when they are
opened. Source: Liu et al., "Deep Learning Face Attributes in the Wild", README of the data set.
A module of its own, as the other kinds of lists: `synthetic_files` asks each whether a path is of its kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from cotenant.tracing.data.data_options import SyntheticSample
from cotenant.tracing.sandbox.overlay import Overlay

IMAGES = 202_599
_IDENTITIES = 10_177
_ENDS = (162_770, 182_637, IMAGES)  # of the images for training, validation and test
_ATTRIBUTES = (
    "5_o_Clock_Shadow", "Arched_Eyebrows", "Attractive", "Bags_Under_Eyes", "Bald", "Bangs", "Big_Lips", "Big_Nose",
    "Black_Hair", "Blond_Hair", "Blurry", "Brown_Hair", "Bushy_Eyebrows", "Chubby", "Double_Chin", "Eyeglasses",
    "Goatee", "Gray_Hair", "Heavy_Makeup", "High_Cheekbones", "Male", "Mouth_Slightly_Open", "Mustache",
    "Narrow_Eyes", "No_Beard", "Oval_Face", "Pale_Skin", "Pointy_Nose", "Receding_Hairline", "Rosy_Cheeks",
    "Sideburns", "Smiling", "Straight_Hair", "Wavy_Hair", "Wearing_Earrings", "Wearing_Hat", "Wearing_Lipstick",
    "Wearing_Necklace", "Wearing_Necktie", "Young",
)  # fmt: skip
_ATTRIBUTE_LISTS = ("list_attr_celeba", "list_attr_celeba_hq")
_ROWS = range(2**8)  # both values of each attribute occur
_PARTS, _IDENTITY_LIST = "list_eval_partition", "identity_CelebA"


def is_celeba_list(path: str) -> bool:
    """Whether a path is one of the lists."""
    name = Path(path)
    is_list = name.stem in (*_ATTRIBUTE_LISTS, _PARTS, _IDENTITY_LIST)
    return is_list and name.suffix in (".txt", ".csv")


def make(
    full: str, overlay: Overlay, image: SyntheticSample, make_images: Callable[[str, str, Sequence[str]], bool]
) -> bool:
    """Make the list `full` in the overlay."""
    lines = _lines(Path(full).stem, is_csv=full.endswith(".csv"))
    overlay.new_file(full).write_text("\n".join(lines) + "\n")
    return True


def _lines(kind: str, *, is_csv: bool) -> Iterator[str]:
    separator = "," if is_csv else " "
    if kind in _ATTRIBUTE_LISTS:
        yield from [",".join(["image_id", *_ATTRIBUTES])] if is_csv else [str(IMAGES), " ".join(_ATTRIBUTES)]
        rows = [separator.join("-1" if row >> at % 8 & 1 else " 1" for at in range(len(_ATTRIBUTES))) for row in _ROWS]
        values = (rows[index % len(rows)] for index in range(IMAGES))
    else:
        yield from ["image_id,partition" if kind == _PARTS else "image_id,identity"] if is_csv else []
        values = (_number(kind, index) for index in range(IMAGES))
    yield from (f"{index:06d}.jpg{separator}{value}" for index, value in enumerate(values, 1))


def _number(kind: str, index: int) -> str:
    return str(sum(index >= end for end in _ENDS) if kind == _PARTS else index % _IDENTITIES + 1)
