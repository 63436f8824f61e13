"""Pictures that programs write next to their tables."""

from kbert import visualization
from kbert.io.paths import Path

# A picture of more classes cannot be read.
_MOST_CLASSES = 60


def draw_confusion(confusion: dict | None, folder: Path) -> None:
    """Writes `confusion_matrix.png` and prints its path; not for more than 60 classes.

    Args:
        confusion: `matrix` and `names`; None for tasks without classes, which have no picture.
        folder: folder for the picture.
    """
    if confusion is None or len(confusion["names"]) > _MOST_CLASSES:
        return
    path = folder / "confusion_matrix.png"
    with path.open("wb") as file:
        visualization.confusion_matrix(**confusion).savefig(file, bbox_inches="tight")
    print(f"picture: {path}")
