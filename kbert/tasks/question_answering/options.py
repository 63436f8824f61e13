"""Settings of question answering."""

from kbert.core.options import option
from kbert.tasks.fine_tuning.options import RowOptions


class QuestionAnswererOptions(RowOptions):
    """Settings of `QuestionAnswerer`.

    Args:
        {options}
    """

    max_length: int | None = option(
        None,
        help="Tokens of a window with its question and special tokens. None: 384, or what the "
        "encoder takes if that is less.",
        at_least=4,
    )
    doc_stride: int | None = option(
        None,
        help="Tokens from the start of a window to that of the next. None: 128, or half of what a "
        "window holds with the longest question if that is less.",
        at_least=1,
    )
    max_question_length: int | None = option(
        None,
        help="Tokens after which a question is cut. None: 64, or a quarter of max_length if that "
        "is less.",
        at_least=1,
    )
    max_answer_length: int = option(30, help="Most tokens of an answer.", at_least=1)
    n_best: int = option(20, help="Answers that a prediction names, K.", at_least=1)
    null_threshold: float | None = option(
        None,
        help='The answer is "" where the score of "no answer" is more than this above that of the '
        "best span. None always answers, if the context has a word; fit makes 0.0 of it where the "
        "data has questions without an answer.",
    )
