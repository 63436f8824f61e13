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
        help="Maximum tokens in a window, including question and special tokens. None: 384, or the "
        "encoder's maximum if that is less.",
        at_least=4,
    )
    doc_stride: int | None = option(
        None,
        help="Tokens from the start of one window to the start of the next. None: 128, or half of "
        "a window's context with the longest question if that is less.",
        at_least=1,
        fixed=True,
    )
    max_question_length: int | None = option(
        None,
        help="Maximum tokens in a question; longer ones are truncated. None: 64, or a quarter of "
        "max_length if that is less.",
        at_least=1,
        fixed=True,
    )
    max_answer_length: int = option(
        30, help="Maximum tokens in an answer.", at_least=1, of_rows=False
    )
    n_best: int = option(
        20, help="Number of answers in a prediction, K.", at_least=1, of_rows=False
    )
    null_threshold: float | None = option(
        None,
        help='The answer is "" if the score of "no answer" exceeds the score of the best span by '
        "more than this. None: always answer if the context has a word; fit sets it to 0.0 if the "
        "data has questions without an answer.",
        of_rows=False,
    )
