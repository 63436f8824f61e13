"""Orders of the ids of SentencePiece vocabularies, and the tokens around a text, by family."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# The languages of mBART (Liu et al. 2020, table 1), and those that mBART-50 added (Tang et al.
# 2020, table 1), in the order of their ids.
_MBART = tuple(
    "ar_AR cs_CZ de_DE en_XX es_XX et_EE fi_FI fr_XX gu_IN hi_IN it_IT ja_XX kk_KZ ko_KR lt_LT "
    "lv_LV my_MM ne_NP nl_XX ro_RO ru_RU si_LK tr_TR vi_VN zh_CN".split()
)
_MBART_50 = _MBART + tuple(
    "af_ZA az_AZ bn_IN fa_IR he_IL hr_HR id_ID ka_GE km_KH mk_MK ml_IN mn_MN mr_IN pl_PL ps_AF "
    "pt_XX sv_SE sw_KE ta_IN te_IN th_TH tl_XX uk_UA ur_PK xh_ZA gl_ES sl_SI".split()
)
# PEGASUS' sentence mask, and its ids without a meaning: 103 ids stand before the model's own.
PEGASUS_OFFSET = 103
_PEGASUS_MASKS = ("<mask_1>", "<mask_2>")
_PEGASUS_UNUSED = tuple(f"<unk_{number}>" for number in range(2, PEGASUS_OFFSET))
_FAIRSEQ = ("<s>", "<pad>", "</s>", "<unk>")
_T5 = ("<pad>", "</s>", "<unk>")
_DEBERTA = ("[PAD]", "[CLS]", "[SEP]", "[UNK]")
# Role -> its usual tokens; the first one in the vocabulary is used.
_Roles = Mapping[str, tuple[str, ...]]
_FAIRSEQ_ROLES: _Roles = {"pad": ("<pad>",), "cls": ("<s>",), "sep": ("</s>",), "mask": ("<mask>",)}


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The order of a tokenizer's ids, and the special tokens of its rows.

    Attributes:
        roles: role of a special token -> its usual tokens, of which the first one in the vocabulary
            is used.
        saved_as: name of Hugging Face's class, and of the file of the SentencePiece model. None =
            ALBERT's or XLNet's, by the pieces.
        first: first pieces of the model. () = the ids are those of the model.
        beginning: tokens with the first ids, instead of those pieces of `first` that it has.
        end: tokens after the last piece of the model, unless the model has them.
        specials: special tokens without a role, other than languages.
        languages: codes of languages, which are special tokens.
        prefix: roles of the tokens before a text, or "language", that of its language; None =
            "cls", unless that token comes last.
        suffix: the same, after a text; None = "sep", and "cls" if it comes last.
        separators: number of "sep" tokens between two texts.
    """

    roles: _Roles
    saved_as: tuple[str, str] | None = None
    first: tuple[str, ...] = ()
    beginning: tuple[str, ...] = ()
    end: tuple[str, ...] = ()
    specials: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    prefix: tuple[str, ...] | None = None
    suffix: tuple[str, ...] | None = None
    separators: int = 1

    @property
    def replaced(self) -> tuple[str, ...]:
        """The first pieces of the model, those that `beginning` has too."""
        return tuple(piece for piece in self.first if piece in self.beginning)

    def arrange(
        self, pieces: Sequence[str], end: tuple[str, ...] | None = None
    ) -> tuple[list[str], list[int]]:
        """Returns the tokens in the order of their ids, and the id of each piece of the model.

        `end` replaces the attribute.
        """
        end = self.end if end is None else end
        end = () if end and end[-1] in pieces else end  # mT5's model has them
        vocabulary = [*self.beginning, *pieces[len(self.replaced) :], *end]
        ids = [self.beginning.index(piece) for piece in self.replaced]
        return vocabulary, [*ids, *range(len(self.beginning), len(vocabulary) - len(end))]


def sentinels(number: int) -> tuple[str, ...]:
    """Returns T5's sentinels in the order of their ids.

    >>> sentinels(2)
    ('<extra_id_1>', '<extra_id_0>')
    """
    return tuple(f"<extra_id_{index}>" for index in reversed(range(number)))


_MODEL = ("<unk>", "<s>", "</s>")
LAYOUTS: Mapping[str, Layout] = {
    "sentencepiece": Layout(
        roles={
            "pad": ("<pad>", "[PAD]"),
            "cls": ("[CLS]", "<cls>", "<s>"),
            "sep": ("[SEP]", "<sep>", "</s>"),
            "mask": ("[MASK]", "<mask>"),
        },
    ),
    "fairseq": Layout(
        roles=_FAIRSEQ_ROLES,
        saved_as=("XLMRobertaTokenizer", "sentencepiece.bpe.model"),
        first=_MODEL,
        beginning=_FAIRSEQ,
        end=("<mask>",),
        separators=2,
    ),
    "camembert": Layout(
        roles=_FAIRSEQ_ROLES,
        saved_as=("CamembertTokenizer", "sentencepiece.bpe.model"),
        first=_MODEL,
        beginning=("<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED"),
        end=("<mask>",),
        separators=2,
    ),
    "xlnet": Layout(
        roles={"pad": ("<pad>",), "cls": ("<cls>",), "sep": ("<sep>",), "mask": ("<mask>",)},
    ),
    "deberta": Layout(
        roles={"pad": ("[PAD]",), "cls": ("[CLS]",), "sep": ("[SEP]",), "mask": ("[MASK]",)},
        saved_as=("DebertaV2Tokenizer", "spm.model"),
        first=_DEBERTA,
        beginning=_DEBERTA,
        end=("[MASK]",),
    ),
    "t5": Layout(
        roles={"pad": ("<pad>",), "sep": ("</s>",)},
        saved_as=("T5Tokenizer", "spiece.model"),
        first=_T5,
        beginning=_T5,
        end=sentinels(100),
        prefix=(),
        suffix=("sep",),
    ),
    "pegasus": Layout(
        roles={"pad": ("<pad>",), "sep": ("</s>",), "mask": ("<mask_2>",)},
        saved_as=("PegasusTokenizer", "spiece.model"),
        first=_T5,
        beginning=("<pad>", "</s>", *_PEGASUS_MASKS, *_PEGASUS_UNUSED),
        specials=("<mask_1>", *_PEGASUS_UNUSED),
        prefix=(),
        suffix=("sep",),
        separators=0,
    ),
    "mbart": Layout(
        roles=_FAIRSEQ_ROLES,
        saved_as=("MBartTokenizer", "sentencepiece.bpe.model"),
        first=_MODEL,
        beginning=_FAIRSEQ,
        end=(*_MBART, "<mask>"),
        languages=_MBART,
        prefix=(),
        suffix=("sep", "language"),
        separators=0,
    ),
    "mbart50": Layout(
        roles=_FAIRSEQ_ROLES,
        saved_as=("MBart50Tokenizer", "sentencepiece.bpe.model"),
        first=_MODEL,
        beginning=_FAIRSEQ,
        end=(*_MBART_50, "<mask>"),
        languages=_MBART_50,
        prefix=("language",),
        suffix=("sep",),
        separators=0,
    ),
}
# Layouts of models whose authors prepared texts before SentencePiece.
PREPARED = ("sentencepiece", "xlnet")


def layout_named(name: Any) -> Layout:
    """Returns the layout of a name. Raises ValueError if there is none; a file may hold a list."""
    if name not in tuple(LAYOUTS):
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}. Received: {name!r}")
    return LAYOUTS[name]


def layout_of(vocabulary: Sequence[str]) -> str | None:
    """Returns the layout of a vocabulary whose order is not that of its model; None for others.

    >>> layout_of(["<s>", "<pad>", "</s>", "<unk>", "a", "<mask>"])
    'fairseq'
    """
    matching = [
        name
        for name, layout in LAYOUTS.items()
        if layout.beginning != layout.first
        and tuple(vocabulary[: len(layout.beginning)]) == layout.beginning
        and tuple(vocabulary[len(vocabulary) - len(layout.end) :]) == layout.end
    ]
    # XLM-R's last token is one of the last tokens of mBART.
    return max(matching, key=lambda name: len(LAYOUTS[name].end), default=None)
