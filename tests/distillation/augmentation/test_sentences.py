import unicodedata

import pytest
from hypothesis import given, strategies as st

from kbert.distillation.augmentation import STOP_WORDS, read_stop_words
from kbert.distillation.augmentation.sentences import Sentence, find_words, is_word, match_case


def words(text):
    return [text[start:end] for start, end in find_words(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a well-made film, isn't it?", ["a", "well", "made", "film", "isn", "t", "it"]),
        ("the 1930s, 3D and x2", ["the", "and"]),
        ("snake_case", ["snake", "case"]),
        ("Déjà vu", ["Déjà", "vu"]),
        (unicodedata.normalize("NFD", "Déjà vu"), [unicodedata.normalize("NFD", "Déjà"), "vu"]),
        ("हिन्दी फ़िल्म", ["हिन्दी", "फ़िल्म"]),
        ("看电影 now", ["看", "电", "影", "now"]),
        ("²½ ٣", []),
        ("", []),
    ],
)
def test_words_are_runs_of_letters(text, expected):
    assert words(text) == expected


def test_stop_words_stay_whatever_their_case():
    sentence = Sentence.of("The film WAS Good , wo n't you see", STOP_WORDS)
    assert [sentence.word(n) for n in range(len(sentence.spans))] == ["film", "Good", "see"]


@given(st.text(max_size=40))
def test_replacing_words_by_themselves_changes_nothing(text):
    sentence = Sentence.of(text, ())
    same = {number: sentence.word(number) for number in range(len(sentence.spans))}
    assert sentence.replaced(same) == sentence.replaced({}) == text


def test_words_that_are_split_already_are_replaced_whole():
    sentence = Sentence.of(["U.N.", "official", "Ekeus", "don't", "of", "New York"], {"of"})
    assert [sentence.word(number) for number in (0, 1)] == ["official", "Ekeus"]
    assert len(sentence.spans) == 2
    replaced = sentence.replaced({1: "Smith"})
    assert replaced == ["U.N.", "official", "Smith", "don't", "of", "New York"]


def test_the_case_of_a_word():
    assert match_case("Film", "movie") == "Movie"
    assert match_case("FILM", "movie") == "MOVIE"
    assert match_case("film", "Paris") == "Paris"
    assert match_case("iPod", "radio") == "radio"
    assert is_word("Ångström")
    assert not is_word("two words")
    assert not is_word("")


def test_a_file_of_stop_words(tmp_path):
    path = tmp_path / "stop.txt"
    path.write_text("Und\n\noder \n")
    assert read_stop_words(path) == {"und", "oder"}
    path.write_text("und\nso weiter\n")
    with pytest.raises(ValueError, match=r"stop.txt, line 2: .* one word per line. .*'so weiter'"):
        read_stop_words(path)


def test_the_built_in_list_is_of_function_words():
    assert {"the", "of", "not", "they", "because", "would", "n", "t"} <= STOP_WORDS
    assert not {"film", "good", "bad", "never mind", ""} & STOP_WORDS
    assert all(word == word.lower() and is_word(word) for word in STOP_WORDS)
