"""From the next token's logits to whole texts: greedy search, sampling, beam search.

This subpackage does not depend on models: it calls a `step` function and passes its KV cache back.
"""

from kbert.decoding.decode import Decoded, decode
from kbert.decoding.methods import Beam, Greedy, Method, Sampling
from kbert.decoding.options import DecodingOptions
from kbert.decoding.stream import stream

__all__ = ["Beam", "Decoded", "DecodingOptions", "Greedy", "Method", "Sampling", "decode", "stream"]
