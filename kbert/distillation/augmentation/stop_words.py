"""Words that are not replaced: the function words of English.

The list was compiled for kbert from the closed classes of English grammar; it is not a copy of
another list. Contractions are listed as the parts between punctuation ("don't": don, t), also as
the Penn Treebank splits them ("wo n't": wo, n, t).
"""

import os

from kbert.core.types import PathLike
from kbert.data.readers.content import DataFile

_GROUPS = {
    "articles, determiners": """
        a an the this that these those all any both each either enough every few less many
        more most much neither no none other others another same several some such what
        whatever which whichever own
    """,
    "pronouns": """
        i me my mine myself we us our ours ourselves you your yours yourself yourselves he
        him his himself she her hers herself it its itself they them their theirs
        themselves one ones oneself who whom whose whoever somebody someone something
        anybody anyone anything everybody everyone everything nobody nothing
    """,
    "prepositions": """
        about above across after against along among around as at before behind below
        beneath beside besides between beyond by despite down during except for from in
        inside into like near of off on onto out outside over past per since than through
        throughout to toward towards under until up upon via with within without
    """,
    "conjunctions": """
        although and because but if lest nor or so though unless whereas whether while yet
    """,
    "auxiliaries": """
        am is are was were be been being do does did done doing have has had having can
        cannot could may might must ought shall should will would
    """,
    "adverbs of grammar": """
        again also even ever further here how however just never not now once only quite
        rather then there therefore thus too very when whenever where wherever why
    """,
    "what apostrophes leave": """
        ain aren ca couldn d didn doesn don hadn hasn haven isn ll m mightn mustn n needn
        re s sha shan shouldn t ve wasn weren wo won wouldn
    """,
}
STOP_WORDS: frozenset[str] = frozenset(" ".join(_GROUPS.values()).split())


def read_stop_words(path: PathLike) -> frozenset[str]:
    """Loads stop words from a file, one per line; empty lines are skipped, case does not matter.

    Args:
        path: file in UTF-8, plain or `.gz`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: a line has several words; the message has its number.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "words.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("Der\\ndie\\n\\n")
        >>> sorted(read_stop_words(path))
        ['der', 'die']
    """
    path = os.fspath(path)
    words: set[str] = set()
    for number, line in DataFile(path).lines():
        line_words = line.split()
        if len(line_words) > 1:
            raise ValueError(
                f"{path}, line {number}: a file of stop words must have one word per line. "
                f"Received: {line!r:.80}"
            )
        words.update(word.lower() for word in line_words)
    return frozenset(words)
