"""Pictures that programs write next to their tables."""

from kbert import visualization
from kbert.io.paths import Path

# A picture of more classes than this is a carpet.
_MOST_CLASSES = 60


def draw_confusion(confusion: dict | None, folder: Path) -> None:
    """Writes `confusion_matrix.png`, of tasks with classes, and says so.

    Args:
        confusion: `matrix` and `names`, or None.
        folder: where to.
    """
    if confusion is None or len(confusion["names"]) > _MOST_CLASSES:
        return
    path = folder / "confusion_matrix.png"
    with path.open("wb") as file:
        visualization.confusion_matrix(**confusion).savefig(file, bbox_inches="tight")
    print(f"picture: {path}")
