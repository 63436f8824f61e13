"""Llama 3's byte-level BPE, which EuroBERT has: its words, and pieces that no merge makes."""

import json

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kbert.tokenizers import BytePairTokenizer, load_tokenizer, train_byte_pair
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from kbert.tokenizers.bpe.tokenizer_json import LLAMA3
from tests.tokenizers.bpe.test_modernbert import HARD, PARTS, TEXT, same

SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>", "<|parallel_sep|>"]
LINES = [
    "a  b", "a \n\n  b", "\n\n x", " \n x", "!\r\n\r\n  !", "  1", " 12345 6", "x\t\ty\n\tz",
    "it'S IT'LL it\u2019s '\u017f 'st", "\u00a0\u3000x \u3000", "--x !!x \u0301x", "x \n",
    "x \n \n ",
    "#\n#\n", "\x85\n\x85x", "١٢٣٤ ½½½½", "\x0b\x0cx \x0c\n",
]  # fmt: skip
TEXTS = st.lists(
    st.one_of(
        PARTS,
        st.text(st.sampled_from(" \t\n\r\x0b\x85\u3000'sStTlLx1,.!\u017f"), max_size=20),
    ),
    max_size=6,
).map("".join)


def pipeline(ignore_merges: bool = True) -> Tokenizer:
    """A Tokenizer of `tokenizers` as Llama 3's tokenizer.json has it, trained on a line."""
    vocabulary, merges = train_byte_pair([TEXT] * 3, 400, special_tokens=[], words="llama3")
    vocabulary += ["Ġflightles", "qqq", "Ġqqq"]  # which no merges make
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    pairs = [tuple(merge.split(" ")) for merge in merges]
    theirs = Tokenizer(models.BPE(ids, pairs, ignore_merges=ignore_merges))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    begin, end = SPECIALS[:2]
    theirs.post_processor = TemplateProcessing(
        f"{begin} $A {end}",
        f"{begin} $A {end} $B:1 {end}:1",
        [(token, theirs.token_to_id(token)) for token in (begin, end)],
    )
    return theirs


def save(theirs: Tokenizer, folder) -> None:
    begin, end, mask, _ = SPECIALS
    PreTrainedTokenizerFast(
        tokenizer_object=theirs, bos_token=begin, eos_token=end, pad_token=end, mask_token=mask
    ).save_pretrained(folder)


@pytest.fixture(scope="module", params=[True, False], ids=["pieces first", "merges first"])
def pair(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("llama3")
    save(pipeline(request.param), folder)
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.encode_special_tokens = True
    ours = load_tokenizer(folder)
    assert (ours.words, ours.ignore_merges) == ("llama3", request.param)
    return ours, theirs


def test_hard_texts(pair):
    same(*pair, [*HARD, *LINES, "qqq qqq flightles"])
    ours, _ = pair
    texts = [*LINES, *HARD]
    assert ours.decode(ours.encode(texts).to_list()) == texts


@given(texts=st.lists(TEXTS, min_size=1, max_size=20))
@example(texts=LINES)
@settings(max_examples=80, deadline=None)
def test_any_text(pair, texts):
    same(*pair, texts)


def test_pieces_that_no_merges_make(pair):
    ours, _ = pair
    pieces = [ours.vocabulary[i] for i in ours.encode("qqq qqq")]
    whole = ["qqq", "Ġqqq"] if ours.ignore_merges else [*"qqq", "Ġ", *"qqq"]
    assert pieces == whole


def test_roles_and_what_is_saved(tmp_path):
    save(pipeline(), tmp_path / "given")
    ours = load_tokenizer(tmp_path / "given")
    begin, end, mask, other = SPECIALS
    assert (ours.cls_token, ours.sep_token, ours.mask_token) == (begin, end, mask)
    assert ours.pad_id == ours.sep_id
    assert ours.additional_special_tokens == [other]
    ours.save(tmp_path / "kbert")
    again = load_tokenizer(tmp_path / "kbert")
    assert (again.get_config(), again.checksum) == (ours.get_config(), ours.checksum)
    before, theirs = (AutoTokenizer.from_pretrained(tmp_path / x) for x in ("given", "kbert"))
    texts = [*HARD, *LINES]
    assert theirs(texts).input_ids == before(texts).input_ids
    assert theirs("a  b", "c").input_ids == before("a  b", "c").input_ids


def test_other_words_are_refused(tmp_path):
    save(pipeline(), tmp_path)
    path = tmp_path / "tokenizer.json"
    content = json.loads(path.read_text())
    split = content["pre_tokenizer"]["pretokenizers"][0]
    for changes in (
        {"pattern": {"Regex": r"\w+"}},
        {"behavior": "Removed"},
        {"invert": True},
        {"type": "Whitespace"},
    ):
        steps = [split | changes, *content["pre_tokenizer"]["pretokenizers"][1:]]
        path.write_text(
            json.dumps(content | {"pre_tokenizer": {"type": "Sequence", "pretokenizers": steps}})
        )
        with pytest.raises(ValueError, match=r"or Llama 3's.*pre_tokenizer='Sequence'"):
            load_tokenizer(tmp_path)


def test_arguments():
    with pytest.raises(ValueError, match=r"`words` must be one of gpt2, llama3.*'llama2'"):
        BytePairTokenizer([*CHARACTERS], [], words="llama2")
    with pytest.raises(ValueError, match=r"supported for GPT-2's words only.*'llama3'"):
        BytePairTokenizer([*CHARACTERS], [], words="llama3", add_prefix_space=True)
