"""Settings of the batches for denoising."""

from __future__ import annotations

from typing import Any

from kbert.core.late import TABLE
from kbert.core.options import option
from kbert.data.denoising.noise import Noise, make_noise
from kbert.data.denoising.rows import LAYOUTS
from kbert.data.pretraining.settings import StreamSettings

_STARTS = ("cls", "sep", "pad")


class DenoisingSettings(StreamSettings):
    """Settings of `denoising_dataset`, except the location of the data and the start.

    Values left out (None) are filled with those of the noise. After construction `segments` is
    never None.

    Args:
        {options}
    """

    noise: str = option(
        "bart",
        help=f"Kind of noise: {', '.join(TABLE['noise'])}. Options may follow a colon, as in "
        "t5:masked_share=0.2,mean_span=4.",
    )
    sequence_length: int = option(
        512,
        help="Tokens of the encoder's input (S), including special tokens. Those of the decoder "
        "(T) follow from it and the noise.",
        at_least=8,
        at_most=2**15,
    )
    batch_size: int = StreamSettings.with_default("batch_size", 256)
    segments: str | None = option(
        None,
        help="How sequences are made from text: single is contiguous text of one document, "
        "doc_sentences whole sentences of one document, joined the text of all documents without "
        "separators, in full sequences. Default: that of the noise.",
        choices=list(LAYOUTS),
    )
    decoder_start: str | None = option(
        None,
        help="Role of the token that begins the decoder's input. Default: that of the noise, which "
        "may be a token of the text (mass).",
        choices=list(_STARTS),
    )

    def check(self) -> None:
        super().check()
        noise = self.noise_options
        self._rule(self.decoder_start is None or noise.decoder_start is not None,
                   f"noise={noise.kind!r} begins the decoder's input with a token of the text: "
                   "leave out `decoder_start`", "noise", "decoder_start")  # fmt: skip
        for name in ("segments", "decoder_start"):
            if getattr(self, name) is None:
                object.__setattr__(self, name, getattr(noise, name))

    @property
    def noise_options(self) -> Noise:
        """The noise with its options."""
        return make_noise(self.noise)

    @property
    def text_length(self) -> int:
        """Maximum number of text tokens of a row (L)."""
        return self.noise_options.text_length(self.sequence_length)

    @property
    def target_length(self) -> int:
        """Maximum number of targets of a row (T)."""
        return self.noise_options.target_length(self.sequence_length)


def with_noise(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns keyword arguments of `DenoisingSettings` with a `Noise` replaced by its name."""
    noise = settings.get("noise")
    return settings | {"noise": noise.to_text()} if isinstance(noise, Noise) else settings
