"""Sentence splitting for running text in any script, by punctuation alone.

Two kinds of marks end a sentence. Marks that have no other meaning in their script
(。 ！ ？ । ؟ ። …) end it everywhere. The Latin marks . ! ? … end it only before a space, and not
before a lower case letter ("“Where?” he asked"). A full stop does not end it after an abbreviation
or an initial. A line break always ends a sentence, so text with one sentence per line passes
unchanged.
"""

import re

_LATIN = ".!?…‽⁇⁈⁉"
_ALWAYS = "。！？｡।॥؟۔։።፧။៕༎᙮᠃"
_CLOSING = "\"'”’»›)\\]}」』】》〉）〕｝］＂＇"
_OPENING = "\"'“‘«‹([{「『【《〈（¿¡—–-"
# A line break, or a run of marks with the closing quotes after it. A mark of `_ALWAYS` needs no
# space after it. Every alternative begins with one character class, so `re` skips quickly over
# the text between candidates.
_CANDIDATE = re.compile(
    rf"[{_LATIN}{_ALWAYS}\n](?:(?<=\n)|[{_LATIN}{_ALWAYS}]*"
    rf"(?:(?<=[{_ALWAYS}])[{_CLOSING}]*[^\S\n]*|[{_CLOSING}]*[^\S\n]+))"
)

# After these words a full stop does not end a sentence, even before a capital: titles, and words
# before a number or a name. Abbreviations that may also end a sentence (etc., Inc., a.m.) are not
# listed; before a lower case letter they never split anyway.
_ABBREVIATIONS = frozenset(
    # English
    "mr mrs ms messrs dr prof rev hon st gen col maj capt lt sgt cpl gov sen rep pres supt esq "
    "vs viz cf fig figs eq eqs sec ch vol vols no nos pp ed eds al approx ca jan feb mar apr aug "
    "sept oct nov dec mt ft "
    # German, French, Spanish, Italian, Portuguese
    "bzw bspw evtl ggf hrsg nr abs abb bd bzgl str inkl mme mlle mgr sr sra srta dña ud uds sig "
    "sigra dott avv ing exmo "
    # Russian
    "им ул пр пл гор обл руб коп тыс млн млрд см рис стр гл проф акад кн гр св"
    "".split()
)
_LONGEST = max(map(len, _ABBREVIATIONS)) + 2  # with an opening quote and a space before it
MAX_SENTENCE = 2_000  # characters; a transcript without punctuation is split at spaces


def split_sentences(text: str) -> list[str]:
    """Splits running text into sentences, in order, without surrounding white space.

    Only white space is lost. Marks with no text before them join the text after them on the line.
    A sentence beyond `MAX_SENTENCE` characters is split at a space.

    Example:
        >>> split_sentences("Mr. Fox ran. “Why?” he asked. Nobody knew…")
        ['Mr. Fox ran.', '“Why?” he asked.', 'Nobody knew…']
        >>> split_sentences("吾輩は猫である。名前はまだ無い。")
        ['吾輩は猫である。', '名前はまだ無い。']
    """
    sentences: list[str] = []
    start = 0
    for candidate in _CANDIDATE.finditer(text):
        begin, end = candidate.span()
        if begin == start:  # no text before the marks: they join the next sentence
            if text[end - 1] == "\n":
                _append(sentences, text[start:end].strip())
                start = end
            continue
        last = text[end - 1]
        if last != "\n" and last.isspace() and text[begin] not in _ALWAYS:
            following = text[end : end + 1]
            if following in _OPENING:
                following = text[end : end + 4].lstrip(_OPENING + " ")[:1]
            if following.islower():
                continue
            if text[begin] == "." and text[begin + 1].isspace():
                # The word before the stop, if it is short enough to be an abbreviation.
                space = text.rfind(" ", max(start, begin - _LONGEST), begin)
                if space >= 0 or begin - start < _LONGEST:
                    word = text[space + 1 if space >= 0 else start : begin]
                    if _is_abbreviation(word, first=space < 0):
                        continue
        _append(sentences, text[start:end].strip())
        start = end
    _append(sentences, text[start:].strip())
    return sentences


def _is_abbreviation(word: str, first: bool) -> bool:
    """Whether a full stop after a word does not end the sentence.

    `first` says that the word is the first one of its sentence.
    """
    if word.lower() in _ABBREVIATIONS:
        return True
    word = word.lstrip(_OPENING)
    if word.isdigit():
        return first  # "12. The storm": the number of a list or a heading
    if len(word) == 1:
        # An initial ("J. Smith", "А. П. Чехов"), not the pronoun, nor an ideograph.
        return word != "I" and word.isalpha() and word.lower() != word.upper()
    if "." in word:
        # "e.g.", "U.S.", "т.е.": single letters with dots; "a.m." and "p.m." do end sentences.
        parts = word.split(".")
        return all(len(part) == 1 and part.isalpha() for part in parts) and word[-1] not in "mM"
    return word.lower() in _ABBREVIATIONS


def _append(sentences: list[str], sentence: str) -> None:
    """Appends a sentence, unless it is empty; one longer than `MAX_SENTENCE` is split at spaces."""
    while len(sentence) > MAX_SENTENCE:
        cut = sentence.rfind(" ", 1, MAX_SENTENCE)
        cut = cut if cut > 0 else MAX_SENTENCE
        sentences.append(sentence[:cut])
        sentence = sentence[cut:].lstrip()
    if sentence:
        sentences.append(sentence)
