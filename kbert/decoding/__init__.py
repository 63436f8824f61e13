"""From the next token's logits to whole texts: greedy search, sampling, beam search.

The room knows no model: it calls a `step` function and hands it back its cache.
"""

from kbert.decoding.decode import Decoded, decode
from kbert.decoding.methods import Beam, Greedy, Method, Sampling
from kbert.decoding.stream import stream

__all__ = ["Beam", "Decoded", "Greedy", "Method", "Sampling", "decode", "stream"]
