"""Damage to files, as hypothesis draws it: bytes, pieces of files, values of JSON."""

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

# What parsers trip over: signs of syntax, ends of ranges, halves of characters.
TOKENS = (
    b"", b"\0", b"\n", b"\r", b"\t", b'"', b"\\", b"{", b"}", b"[" * 2000, b"]", b",", b":", b"-1",
    b"0", b"1e999", b"NaN", b"9" * 5000, b"null", b"true", b"\xff", b"\xfe\xff", b"\xed\xa0\x80",
    b"\xef\xbb\xbf", b"\x7f\xff\xff\xff", b"\xff" * 8, b"\0" * 8, b"../../x", b"/dev/zero",
    b"PK\x05\x06", b"#", b"\x1f\x8b", b"\xe2\x80\xa8",
)  # fmt: skip
VALUES = (None, True, False, -1, 0, 1, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"),
          "", "a", "../x", "\ud800", [], [[]], ["a", 1], {}, {"a": {}})  # fmt: skip

places = st.integers(0, 2**32)
bytes_ = st.one_of(st.sampled_from(TOKENS), st.binary(min_size=1, max_size=8))
edits = st.one_of(
    st.tuples(st.just("replace"), places, bytes_),
    st.tuples(st.just("insert"), places, bytes_),
    st.tuples(st.just("remove"), places, st.integers(1, 64)),
    st.tuples(st.just("repeat"), places, st.integers(1, 64)),
    st.tuples(st.just("cut"), places, st.none()),
    st.tuples(st.just("flip"), places, st.integers(0, 7)),
    st.tuples(st.just("value"), places, st.sampled_from(VALUES)),
    st.tuples(st.just("forget"), places, st.none()),
)
# Which file, and what is done to it.
damages = st.tuples(st.integers(0, 63), st.lists(edits, min_size=1, max_size=3))


def apply(content: bytes, edit: tuple[str, int, Any]) -> bytes:
    """One edit of a file; of JSON's values where it is JSON, else of the bytes there."""
    kind, place, value = edit
    if kind in ("value", "forget"):
        changed = _change_json(content, place, kind, value)
        if changed is not None:
            return changed
        kind, value = "remove", 8
    place %= len(content) + 1
    before, after = content[:place], content[place:]
    if kind == "replace":
        return before + value + after[len(value) :]
    if kind == "insert":
        return before + value + after
    if kind == "remove":
        return before + after[value:]
    if kind == "repeat":
        return before + after[:value] * 3 + after[value:]
    if kind == "cut":
        return before
    return before + bytes([after[0] ^ (1 << value)]) + after[1:] if after else content


def damage(folder: Path, drawn: tuple[int, list]) -> Path:
    """Damages one file of a folder; which one."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    path = files[drawn[0] % len(files)]
    content = path.read_bytes()
    for edit in drawn[1]:
        content = apply(content, edit)
    path.write_bytes(content)
    return path


def _change_json(content: bytes, place: int, kind: str, value: Any) -> bytes | None:
    try:
        tree = json.loads(content)
    except (ValueError, RecursionError):
        return None
    places = list(_places(tree))
    if not places:
        return None
    owner, key = places[place % len(places)]
    if kind == "forget":
        del owner[key]
    else:
        owner[key] = value
    return json.dumps(tree).encode()


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found, ahead = [], [tree]
    while ahead:
        node = ahead.pop()
        if isinstance(node, dict | list):
            keys = list(node) if isinstance(node, dict) else range(len(node))
            found += [(node, key) for key in keys]
            ahead += [node[key] for key in keys]
    return found
