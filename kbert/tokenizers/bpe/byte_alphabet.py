"""The characters that stand for bytes in the vocabulary of a byte-level BPE.

Source: `bytes_to_unicode` in openai/gpt-2, encoder.py: printable bytes of ISO-8859-1 stand for
themselves, the 68 others for the characters from U+0100 on, in order. "Ġ" is the space.
"""

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]

# The character of each byte.
CHARACTERS = [chr(b if b in _PRINTABLE else 0x100 + _OTHERS.index(b)) for b in range(256)]
_BYTES = {character: byte for byte, character in enumerate(CHARACTERS)}
# The characters of the bytes that UTF-8 uses. It never uses C0, C1 and F5 to FF, and vocabularies
# trained without a given alphabet, such as GPT-NeoX's, lack them.
IN_UTF8 = [CHARACTERS[b] for b in range(256) if b not in (0xC0, 0xC1, *range(0xF5, 0x100))]


def is_spelled(piece: str) -> bool:
    """Whether every character of a token stands for a byte."""
    return all(character in _BYTES for character in piece)


def piece_bytes(piece: str) -> bytes:
    """Returns the bytes that a token stands for; other tokens stand for their own UTF-8 bytes.

    Example:
        >>> piece_bytes("ĠcafÃ©").decode()
        ' café'
    """
    if not is_spelled(piece):
        return piece.encode()
    return bytes(_BYTES[character] for character in piece)


def spell(data: bytes) -> str:
    """Writes bytes in the alphabet of characters.

    Example:
        >>> spell(" café".encode())
        'ĠcafÃ©'
    """
    return "".join(CHARACTERS[byte] for byte in data)
