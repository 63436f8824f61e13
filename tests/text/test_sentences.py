"""Sentence splitting: what ends a sentence in which script, and that no text is lost."""

import pytest
from hypothesis import given, settings, strategies as st

from kbert.text import sentences
from kbert.text.sentences import split_sentences


@pytest.mark.parametrize(
    "expected",
    [
        ["It rained.", "We stayed in!", "Why?", "Nobody knew…"],
        ["Mr. and Mrs. Fox saw Dr. J. R. Smith, e.g. on Sunday.", "He left."],
        ["The U.S. Army came at 5 p.m.", "Then it left, cf. fig. 3.", "So am I.", "Good."],
        ["“Where?” he asked.", "“There!”", "She pointed (twice.)", "He went…and came back."],
        ["Version 2.0 costs 3.50 dollars.", "Cheap?!", "'Yes.'", "“No.”"],
        ["3. The storm began.", "It was 1912.", "A list: 1. not 2. here"],
        ["Er wohnt z. B. in der Str. 5 bei Hrsg. Müller.", "Ja."],
        ["Это А. П. Чехов.", "Он жил на ул. Кирова, т. е. в Ялте.", "«Да!» — сказал он."],
        ["यह किताब है।", "वह कहाँ गया?", "कौन जाने॥"],
        ["ما هذا؟", "لا أدري.", "ربما۔"],
        ["ሰው፡ነው።", "እሱ፡ነው።"],
    ],
)
def test_running_text(expected):
    assert split_sentences(" ".join(expected)) == expected


@pytest.mark.parametrize(
    "expected",
    [
        ["吾輩は猫である。", "名前はまだ無い。"],
        ["“走吧！”", "她笑了。", "真的吗？", "是的。"],
        ["वह है।", "यह है।"],
    ],
)
def test_scripts_without_spaces_between_sentences(expected):
    assert split_sentences("".join(expected)) == expected


def test_a_line_break_always_ends_a_sentence():
    assert split_sentences("MY FIRST STAGE\n  at last the tea.  \n\n and so\n") == [
        "MY FIRST STAGE",
        "at last the tea.",
        "and so",
    ]


def test_marks_without_words_join_what_follows():
    assert split_sentences("!! مجدداً ؟ ليس مرة أخرى") == ["!! مجدداً ؟", "ليس مرة أخرى"]
    assert split_sentences("... And then it rained.") == ["... And then it rained."]


def test_text_without_punctuation_is_cut_at_spaces(monkeypatch):
    monkeypatch.setattr(sentences, "MAX_SENTENCE", 20)
    cut = split_sentences("so he said that he would go home " * 3)
    assert max(map(len, cut)) <= 20
    assert " ".join(cut) == ("so he said that he would go home " * 3).strip()
    assert split_sentences("x" * 45) == ["x" * 20, "x" * 20, "x" * 5]


def test_no_text_no_sentences():
    assert split_sentences("") == split_sentences(" \n\t\n ") == []


@settings(deadline=None)
@given(st.text(alphabet="aB.!?…。।\"”') \n\tüΣ0", max_size=60))
def test_nothing_but_white_space_is_lost(text):
    found = split_sentences(text)
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() and sentence for sentence in found)
    assert not any("\n" in sentence for sentence in found)


@settings(deadline=None)
@given(st.text(alphabet="aB.!?…。।\"”') \nü0", max_size=60))
def test_splitting_by_lines_first_changes_nothing(text):
    by_line = [sentence for line in text.split("\n") for sentence in split_sentences(line)]
    assert split_sentences(text) == by_line
