// kbert's WordPieceTokenizer: the same ids for the same text, whatever Unicode the browser knows.
// What becomes of a character is not looked up here: it stands in the rules, which kbert's
// own tokenizer has made (`CharacterRules`, as `site.py` writes them).

// Ranges [first, last, first, last, …] of code points, as a test.
function among(ranges) {
  return code => {
    let low = 0, high = ranges.length / 2 - 1;
    while (low <= high) {
      const middle = (low + high) >> 1;
      if (code < ranges[2 * middle]) high = middle - 1;
      else if (code > ranges[2 * middle + 1]) low = middle + 1;
      else return true;
    }
    return false;
  };
}

const SIGMA = "Σ", LAST_SIGMA = "ς";

export class WordPiece {
  // vocabulary: pieces in the order of their ids; rules: see above; unknown: an id; longest: the
  // characters of a word beyond which it is unknown.
  constructor({vocabulary, rules, unknown, longest}) {
    this.vocabulary = vocabulary;
    this.ids = new Map(vocabulary.map((piece, id) => [piece, id]));
    this.changed = new Map(Object.entries(rules.changed));
    this.isDropped = among(rules.dropped);
    this.isAlone = among(rules.alone);
    this.isCased = among(rules.cased);
    this.isIgnorable = among(rules.ignorable);
    this.unknown = unknown;
    this.longest = longest;
  }

  encode(text) {
    return this.words(text).flatMap(word => this.pieces(word));
  }

  // Lists of characters.
  words(text) {
    // Halves of characters are none, and U+0000 is dropped as kbert does.
    const characters = Array.from(text).filter(x => x !== "\0" && !/^[\uD800-\uDFFF]$/.test(x));
    const words = [];
    let word = [];
    const end = () => {
      if (word.length) words.push(word);
      word = [];
    };
    characters.forEach((character, place) => {
      if (this.isDropped(character.codePointAt(0))) return;
      const isLast = character === SIGMA && this.endsWord(characters, place);
      const after = isLast ? LAST_SIGMA : this.changed.get(character) ?? character;
      for (const x of after) {
        if (x === " ") end();
        else if (this.isAlone(x.codePointAt(0))) {
          end();
          words.push([x]);
        } else word.push(x);
      }
    });
    end();
    return words;
  }

  // Whether the "Σ" at a place is the last letter of its word: a letter before it, none behind.
  endsWord(characters, place) {
    const code = at => characters[at].codePointAt(0);
    let before = place - 1, behind = place + 1;
    while (before >= 0 && this.isIgnorable(code(before))) before--;
    while (behind < characters.length && this.isIgnorable(code(behind))) behind++;
    return before >= 0 && this.isCased(code(before))
      && !(behind < characters.length && this.isCased(code(behind)));
  }

  // The longest piece first; a word that they do not spell is unknown.
  pieces(word) {
    if (word.length > this.longest) return [this.unknown];
    const found = [];
    let start = 0;
    while (start < word.length) {
      let end = word.length, id;
      for (; end > start; end--) {
        id = this.ids.get((start ? "##" : "") + word.slice(start, end).join(""));
        if (id !== undefined) break;
      }
      if (end === start) return [this.unknown];
      found.push(id);
      start = end;
    }
    return found;
  }
}
