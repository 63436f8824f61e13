// The page: tabs of what the chosen model can do. An engine answers: `about()` says what there is,
// `ask(ability, row, signal)` gives a promise of an answer, or of an error to show.
import {engine} from "./engine.js";

const DELAY = 200; // milliseconds without a key before a text is sent
const LISTS = ["words", "choices"]; // columns with one value a line

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== false) made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const byId = id => document.getElementById(id);

function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  return (100 * share).toFixed(1) + " %";
}

// [{name, share, press}] as bars; `press` makes the name a button.
function bars(rows) {
  return element("ol", {class: "bars"}, ...rows.map(({name, share, press, title}) => {
    const shown = press
      ? element("button", {class: "name", type: "button", title, onclick: press}, name)
      : element("span", {class: "name"}, name);
    const bar = element("span", {class: "bar", "aria-hidden": "true"});
    bar.style.width = Math.max(0.5, 100 * share) + "%";
    return element("li", {}, shown, element("span", {}, bar),
      element("span", {class: "percent"}, percent(share)));
  }));
}

// A panel's fields, and its result, which follows what is typed.
class Panel {
  constructor(ability, number) {
    this.ability = ability;
    this.number = number; // of the model
    this.fields = [];
    this.form = element("div");
    this.error = element("p", {class: "error", role: "alert", hidden: ""});
    this.result = element("div", {class: "result", "aria-live": "polite"});
    this.root = element("div", {role: "tabpanel", id: "panel-" + ability,
      "aria-labelledby": "tab-" + ability, hidden: ""}, this.form, this.error, this.result);
  }

  hint(text) {
    this.form.append(element("p", {class: "hint"}, text));
  }

  field(name, label, value, rows = 2) {
    const id = `${this.ability}-${name}`;
    const area = element("textarea", {id, rows, spellcheck: "false"});
    area.value = value;
    area.addEventListener("input", () => this.later());
    this.form.append(element("label", {for: id}, label), area);
    this.fields.push(area);
    return area;
  }

  later() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.now(), DELAY);
  }

  async now() {
    clearTimeout(this.timer);
    if (this.running) this.running.abort();
    const running = this.running = new AbortController();
    const row = this.read();
    if (row === null) { // nothing to ask yet
      this.result.replaceChildren();
      this.result.removeAttribute("aria-busy");
      this.error.hidden = true;
      return;
    }
    this.result.setAttribute("aria-busy", "true");
    try {
      const answer = await engine.ask(this.ability, {model: this.number, ...row}, running.signal);
      if (running.signal.aborted) return;
      this.error.hidden = true;
      this.show(answer);
    } catch (error) {
      if (running.signal.aborted) return;
      this.error.textContent = error.message;
      this.error.hidden = false;
      this.result.replaceChildren();
    }
    this.result.removeAttribute("aria-busy");
  }
}

class FillMask extends Panel {
  constructor(model, number) {
    super("fill_mask", number);
    this.mask = model.mask;
    this.hint(`Every ${this.mask} is filled; press a word to put it into the text.`);
    this.text = this.field("text", "Text", `returns the ${this.mask} of the array.`, 3);
    this.form.append(element("button", {class: "action", type: "button",
      onclick: () => this.insert()}, `Insert ${this.mask}`));
  }

  insert() {
    this.text.setRangeText(this.mask, this.text.selectionStart, this.text.selectionEnd, "end");
    this.text.focus();
    this.now();
  }

  read() {
    return this.text.value.includes(this.mask) ? {text: this.text.value} : null;
  }

  // Puts a token in the place of a mask; pieces that continue a word lose their mark and the space.
  put(place, token) {
    const parts = this.text.value.split(this.mask);
    const before = parts.slice(0, place + 1).join(this.mask);
    const after = parts.slice(place + 1).join(this.mask);
    const continues = token.startsWith("##");
    this.text.value = (continues ? before.trimEnd() + token.slice(2)
      : before + token.replace(/^[▁Ġ]/, "")) + after;
    this.text.focus();
    this.now();
  }

  show({masks}) {
    this.result.replaceChildren(...masks.flatMap((answers, place) => [
      element("h2", {}, masks.length > 1 ? `${this.mask} number ${place + 1}` : "Likely here"),
      bars(answers.map(({token, probability}) => ({
        name: token, share: probability, title: `Put “${token}” into the text`,
        press: () => this.put(place, token),
      }))),
    ]));
  }
}

class Pairs extends Panel {
  constructor(ability, number, first, second, likely, unlikely) {
    super(ability, number);
    this.names = [likely, unlikely];
    this.first = this.field("first", "First text", first);
    this.second = this.field("second", "Second text", second);
  }

  read() {
    const row = {first: this.first.value, second: this.second.value};
    return row.first.trim() && row.second.trim() ? row : null;
  }

  show({probability}) {
    const [likely, unlikely] = this.names;
    this.result.replaceChildren(bars([
      {name: likely, share: probability}, {name: unlikely, share: 1 - probability},
    ]));
  }
}

class Attention extends Panel {
  constructor(model, number) {
    super("attention", number);
    this.hint("How much each token attends to each other one, in every layer and head.");
    this.first = this.field("first", "Text", "The cat sat on the mat because it was tired.");
    this.second = this.field("second", "Second text (may be empty)", "", 1);
    this.picture = element("div", {class: "kbert-attention"});
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      if (this.data) drawAttention(this.picture, this.data);
    });
  }

  read() {
    const texts = [this.first.value, this.second.value].filter(text => text.trim());
    return texts.length ? {texts} : null;
  }

  show(data) {
    this.data = data;
    this.result.replaceChildren(this.picture);
    drawAttention(this.picture, data);
  }
}

const EXAMPLES = {
  text: "A visually stunning rumination on love.",
  first: "How do I cook rice?",
  second: "Rice is cooked in twice as much water.",
  question: "Where do the boats lie?",
  context: "The harbour is behind the old mill. The boats lie there in winter.",
  choices: "They stayed at home.\nThe sun is a number.",
};

class Predict extends Panel {
  constructor(model, number) {
    super("predict", number);
    this.explains = model.abilities.includes("explain");
    this.sets = model.columns;
    this.chosen = 0;
    if (this.sets.length > 1) {
      const select = element("select", {id: "predict-columns", onchange: event => {
        this.chosen = +event.target.value;
        this.fill();
        this.now();
      }}, ...this.sets.map((names, i) => element("option", {value: i}, names.join(" and "))));
      this.form.append(element("p", {}, element("label", {for: "predict-columns"}, "Input"), " ",
        select));
    }
    this.inputs = element("div");
    this.form.append(this.inputs);
    this.fill();
  }

  fill() {
    this.inputs.replaceChildren();
    this.areas = {};
    const form = this.form;
    this.form = this.inputs;
    for (const name of this.sets[this.chosen]) {
      const label = name[0].toUpperCase() + name.slice(1).replaceAll("_", " ");
      const isList = LISTS.includes(name);
      const example = EXAMPLES[name] || (name === "words" ? "Ada\nLovelace\nwrote" : "");
      this.areas[name] = this.field(name, isList ? `${label}, one a line` : label, example,
        isList || name === "context" ? 4 : 2);
    }
    this.form = form;
  }

  read() {
    const row = {};
    for (const [name, area] of Object.entries(this.areas)) {
      row[name] = LISTS.includes(name)
        ? area.value.split("\n").map(line => line.trim()).filter(line => line) : area.value;
      if (!row[name].length || !area.value.trim()) return null;
    }
    this.row = row;
    return {row};
  }

  show({answer}) {
    this.result.replaceChildren(...drawAnswer(answer, this.row));
    if (!this.explains) return;
    this.result.append(element("button", {class: "action", type: "button",
      onclick: event => this.explain(event.target)}, "Explain"));
  }

  // Replaces the button by the tokens, coloured by their scores for the answer.
  async explain(button) {
    const running = this.running;
    button.disabled = true;
    try {
      const found = await engine.ask("explain", {model: this.number, row: this.row},
        running.signal);
      if (!running.signal.aborted) button.replaceWith(scoredTokens(found));
    } catch (error) {
      if (running.signal.aborted) return;
      this.error.textContent = error.message;
      this.error.hidden = false;
      button.disabled = false;
    }
  }
}

// Tokens coloured by their scores: blue for the answer, orange against it.
function scoredTokens({label, method, tokens, scores}) {
  const largest = Math.max(...scores.map(Math.abs)) || 1;
  return element("div", {class: "explanation"},
    element("p", {class: "hint"}, `For “${label}” (blue) and against it (orange), by ` +
      `${method.replaceAll("_", " ")}`),
    element("p", {class: "words"}, ...tokens.flatMap((token, i) => {
      const shown = element("span", {class: "scored", title: scores[i].toPrecision(3)}, token);
      const colour = scores[i] > 0 ? "0, 114, 178" : "213, 94, 0";
      shown.style.background = `rgba(${colour}, ${0.6 * Math.abs(scores[i]) / largest})`;
      return [shown, " "];
    })));
}

// An answer by its shape, whatever task gave it.
function drawAnswer(answer, row) {
  if (answer === null || typeof answer !== "object") return [element("p", {}, String(answer))];
  const shown = [];
  const left = {...answer};
  const take = (...names) => names.forEach(name => delete left[name]);
  const isShares = found => found && typeof found === "object" && !Array.isArray(found);
  if (isShares(answer.probabilities)) {
    const rows = Object.entries(answer.probabilities).map(([name, share]) => ({name, share}));
    shown.push(bars(rows.sort((a, b) => b.share - a.share)));
    take("probabilities", "probability");
  } else if (Array.isArray(answer.probabilities) && Array.isArray(row.choices)) {
    shown.push(bars(row.choices.map((name, i) => ({name, share: answer.probabilities[i]}))));
    take("probabilities", "probability");
  }
  if (Array.isArray(answer.words) && Array.isArray(answer.labels)) {
    shown.push(element("p", {class: "words"}, ...answer.words.flatMap((word, i) => {
      const label = answer.labels[i];
      const share = answer.probabilities ? percent(answer.probabilities[i]) : "";
      return [element("span", {class: label === "O" ? "word" : "word named", title: share}, word,
        element("small", {}, label)), " "];
    })));
    take("words", "labels", "probabilities", "starts", "ends");
    if (Array.isArray(answer.entities)) {
      shown.push(element("ul", {}, ...answer.entities.map(found =>
        element("li", {}, `${found.text} (${found.label})`))));
      take("entities");
    }
  }
  if (typeof answer.start === "number" && typeof row.context === "string" && answer.answer) {
    // Places count characters as Python does, not halves of them.
    const characters = Array.from(row.context);
    shown.push(element("p", {class: "context"},
      characters.slice(0, answer.start).join(""),
      element("mark", {}, characters.slice(answer.start, answer.end).join("")),
      characters.slice(answer.end).join("")));
    take("start", "end");
  }
  const rest = Object.entries(left).filter(([, value]) => value !== null);
  const text = value => typeof value === "number" && !Number.isInteger(value)
    ? value.toPrecision(4) : typeof value === "string" ? value : JSON.stringify(value);
  shown.push(...rest.map(([name, value]) =>
    element("p", {}, element("strong", {}, name.replaceAll("_", " ") + ": "), text(value))));
  return shown;
}

class Nearest extends Panel {
  constructor(model, number, lines) {
    super("nearest", number);
    this.hint(`The nearest of ${lines.toLocaleString("en")} lines, by the cosine of their vectors.`);
    this.text = this.field("text", "Text", "How do I cook rice?");
  }

  read() {
    return this.text.value.trim() ? {text: this.text.value} : null;
  }

  show({hits}) {
    this.result.replaceChildren(element("ol", {class: "hits"}, ...hits.map(({text, score}) =>
      element("li", {}, text + " ", element("small", {}, score.toFixed(3))))));
  }
}

const TITLES = {
  predict: "Predict", fill_mask: "Fill the mask", next_sentence: "Next sentence",
  sentence_order: "Order of sentences", attention: "Attention", nearest: "Nearest texts",
};
const BUILD = {
  predict: (model, number) => new Predict(model, number),
  fill_mask: (model, number) => new FillMask(model, number),
  next_sentence: (model, number) => new Pairs("next_sentence", number, "It rained all day.",
    "We stayed at home.", "It follows", "It is from elsewhere"),
  sentence_order: (model, number) => new Pairs("sentence_order", number, "It rained all day.",
    "So we stayed at home.", "In this order", "The other way round"),
  attention: (model, number) => new Attention(model, number),
  nearest: (model, number, about) => new Nearest(model, number, about.lines),
};

let chosenTab = null;

function choose(panels, ability, {focus = false} = {}) {
  chosenTab = ability;
  for (const panel of panels) {
    const on = panel.ability === ability;
    const tab = byId("tab-" + panel.ability);
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    panel.root.hidden = !on;
    if (on && focus) tab.focus();
    if (on) panel.now();
  }
}

function open(about, number) {
  const model = about.models[number];
  const panels = model.abilities.filter(name => name in BUILD)
    .map(name => BUILD[name](model, number, about));
  byId("about").textContent = model.about;
  byId("panels").replaceChildren(...panels.map(panel => panel.root));
  byId("tabs").replaceChildren(...panels.map(({ability}) => element("button", {
    role: "tab", type: "button", id: "tab-" + ability, "aria-controls": "panel-" + ability,
    onclick: () => choose(panels, ability),
  }, TITLES[ability])));
  byId("tabs").onkeydown = event => {
    const now = panels.findIndex(panel => panel.ability === chosenTab);
    const next = {ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: -1}[event.key];
    if (next === undefined) return;
    event.preventDefault();
    choose(panels, panels.at(next % panels.length).ability, {focus: true});
  };
  if (!panels.length) throw new Error("This model has nothing that the page could show.");
  const same = panels.find(panel => panel.ability === chosenTab) || panels[0];
  choose(panels, same.ability);
}

function fail(error) {
  byId("failure").textContent = error.message;
  byId("failure").hidden = false;
}

async function start() {
  const about = await engine.about();
  const select = byId("model");
  select.replaceChildren(...about.models.map((model, i) =>
    element("option", {value: i}, model.name)));
  byId("model-field").hidden = false;
  select.addEventListener("change", () => {
    byId("failure").hidden = true;
    try {
      open(about, +select.value);
    } catch (error) {
      fail(error);
    }
  });
  open(about, 0);
}

start().catch(error => {
  byId("about").textContent = "";
  fail(error);
});
