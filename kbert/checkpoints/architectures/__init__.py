"""Hugging Face's architectures, a table each, and the choice between them."""

from kbert.checkpoints.architectures.base import FINE_TUNED, Architecture
from kbert.checkpoints.architectures.bert import Bert

ARCHITECTURES: dict[str, Architecture] = {a.model_type: a for a in (Bert(),)}

__all__ = ["ARCHITECTURES", "FINE_TUNED", "Architecture", "find"]


def find(model_type: str, source: str) -> Architecture:
    """The architecture of that name.

    Args:
        model_type: as in `config.json`.
        source: where the name is from, for the message.

    Raises:
        ValueError: kbert does not read that architecture.

    Example:
        >>> find("bert", "memory").prefix
        'bert'
    """
    if model_type not in ARCHITECTURES:
        raise ValueError(
            f"kbert reads and writes the Hugging Face architectures {', '.join(ARCHITECTURES)}. "
            f"Received: {model_type!r} in {source}"
        )
    return ARCHITECTURES[model_type]
