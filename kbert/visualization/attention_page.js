// Draws `data` (AttentionPage.data) into `root`; everything else is inside.
function drawAttention(root, data) {
  "use strict";
  function element(parent, tag, name, text) {
    const made = document.createElement(tag);
    if (name) made.className = name;
    if (text !== undefined) made.textContent = text;
    parent.appendChild(made);
    return made;
  }

  function unpack(part) {
    const text = atob(part.weights);
    const bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
    return bytes;
  }

  function percent(weight) {
    if (weight > 0 && weight < 0.01) return "< 1 %";
    return Math.round(100 * weight) + " %";
  }

  const colour = name => getComputedStyle(root).getPropertyValue("--" + name).trim();
  const parts = data.parts.map(part => Object.assign({bytes: unpack(part)}, part));
  const state = Object.assign({side: null, token: null, pinned: false}, data.start);
  root.textContent = "";
  if (data.title) element(root, "div", "title", data.title);
  const menus = element(root, "div", "menus");
  const body = element(root, "div", "body");
  const view = element(body, "div", "view");
  const panels = element(body, "div", "panels");
  // The menus do the same for who sees no pictures.
  panels.setAttribute("aria-hidden", "true");
  const several = parts.some(part => part.layers * part.heads > 1);
  element(root, "div", "hint", "Point at a token to see its weights, click to keep them." +
    (several ? " A small picture is a head; click it to choose it." : ""));

  function menu(name, options, value, change) {
    const label = element(menus, "label", "", name);
    const select = element(label, "select");
    options.forEach(([key, text]) => { element(select, "option", "", text).value = key; });
    select.value = String(value);
    select.dataset.name = name;
    select.addEventListener("change", () => {
      change(select.value);
      // The menus were made again: the keyboard stays at this one.
      const again = menus.querySelector(`select[data-name="${name}"]`);
      if (again) again.focus();
    });
    return select;
  }

  // (rows, columns) of the chosen layer and head; head -1 is the mean of all.
  function chosen() {
    const part = parts[state.part];
    const size = part.rows.length * part.columns.length;
    const weights = new Float32Array(size);
    const heads = state.head < 0 ? [...Array(part.heads).keys()] : [state.head];
    heads.forEach(head => {
      const from = (state.layer * part.heads + head) * size;
      for (let i = 0; i < size; i++) weights[i] += part.bytes[from + i] / 255 / heads.length;
    });
    return weights;
  }

  function drawMenus() {
    const part = parts[state.part];
    menus.textContent = "";
    if (parts.length > 1)
      menu("attention", parts.map((p, i) => [i, p.name]), state.part, value => {
        const head = parts[+value].heads > 1 ? -1 : 0;
        Object.assign(state, {part: +value, layer: 0, head: head, token: null, side: null,
          pinned: false});
        drawAll();
      });
    const layers = [...Array(part.layers).keys()].map(i => [i, i]);
    if (part.layers > 1) menu("layer", layers, state.layer, value => {
      state.layer = +value; drawAll();
    });
    const heads = [...Array(part.heads).keys()].map(i => [i, i]);
    if (part.heads > 1) menu("head", [[-1, "mean of all"], ...heads], state.head, value => {
      state.head = +value; drawAll();
    });
  }

  let drawWeights = () => {};

  function drawView() {
    const part = parts[state.part];
    const weights = chosen();
    const columns = part.columns.length;
    const count = Math.max(part.rows.length, columns);
    view.textContent = "";
    element(view, "div", "head left", part.titles[0]);
    element(view, "div", "head");
    element(view, "div", "head", part.titles[1]);
    const left = element(view, "div", "side left");
    const canvas = element(view, "canvas");
    canvas.setAttribute("aria-hidden", "true");
    const right = element(view, "div", "side right");
    const ratio = window.devicePixelRatio || 1;
    const width = Math.max(80, Math.min(200, 0.35 * (root.clientWidth || 600)));
    canvas.style.width = width + "px";
    canvas.style.height = 22 * count + "px";
    canvas.width = width * ratio;
    canvas.height = 22 * count * ratio;

    function side(parent, names, which) {
      return names.map((name, i) => {
        const token = element(parent, "div", "token");
        const share = document.createElement("span");
        share.className = "share";
        const text = document.createElement("span");
        text.textContent = name;
        token.append(...(which === "left" ? [share, text] : [text, share]));
        token.tabIndex = 0;
        token.title = name;
        token.setAttribute("role", "button");
        const show = () => { if (!state.pinned) point(which, i); };
        token.addEventListener("mouseenter", show);
        token.addEventListener("focus", show);
        token.addEventListener("mouseleave", () => { if (!state.pinned) point(null, null); });
        const keep = () => {
          const again = state.pinned && state.side === which && state.token === i;
          state.pinned = !again;
          point(which, i);
        };
        token.addEventListener("click", keep);
        token.addEventListener("keydown", event => {
          if (event.key !== "Enter" && event.key !== " ") return;
          event.preventDefault();
          keep();
        });
        return token;
      });
    }
    const tokens = {
      left: side(left, part.rows, "left"),
      right: side(right, part.columns, "right"),
    };

    function point(which, i) {
      state.side = which;
      state.token = i;
      drawWeights();
    }

    drawWeights = function () {
      const context = canvas.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.clearRect(0, 0, width, 22 * count);
      context.lineWidth = 2;
      const line = colour("weight");
      const marks = {left: {}, right: {}};
      for (let row = 0; row < part.rows.length; row++)
        for (let column = 0; column < columns; column++) {
          const weight = weights[row * columns + column];
          if (state.side === "left" && state.token !== row) continue;
          if (state.side === "right" && state.token !== column) continue;
          if (state.side === "left") marks.right[column] = weight;
          if (state.side === "right") marks.left[row] = weight;
          if (weight < 0.004) continue;
          context.strokeStyle = "rgba(" + line + ", " + weight + ")";
          context.beginPath();
          context.moveTo(0, 22 * row + 11);
          context.lineTo(width, 22 * column + 11);
          context.stroke();
        }
      for (const which of ["left", "right"])
        tokens[which].forEach((token, i) => {
          const weight = marks[which][i];
          const known = weight !== undefined;
          token.style.background = known ? "rgba(" + line + ", " + 0.75 * weight + ")" : "";
          token.querySelector(".share").textContent = known ? percent(weight) : "";
          const on = state.side === which && state.token === i;
          token.classList.toggle("on", on);
          token.setAttribute("aria-pressed", String(on && state.pinned));
        });
    };
    drawWeights();
  }

  function drawPanels() {
    const part = parts[state.part];
    const size = part.rows.length * part.columns.length;
    panels.textContent = "";
    if (part.layers * part.heads < 2) return;
    const paper = colour("paper").split(",").map(Number);
    const ink = colour("weight").split(",").map(Number);
    panels.style.gridTemplateColumns = "auto repeat(" + part.heads + ", 34px)";
    element(panels, "div", "", "");
    for (let head = 0; head < part.heads; head++) element(panels, "div", "", head);
    for (let layer = 0; layer < part.layers; layer++) {
      element(panels, "div", "", layer);
      for (let head = 0; head < part.heads; head++) {
        const on = layer === state.layer && (state.head < 0 || head === state.head);
        const canvas = element(panels, "canvas", on ? "on" : "");
        canvas.width = part.columns.length;
        canvas.height = part.rows.length;
        canvas.title = "layer " + layer + ", head " + head;
        const context = canvas.getContext("2d");
        const image = context.createImageData(canvas.width, canvas.height);
        const from = (layer * part.heads + head) * size;
        for (let i = 0; i < size; i++) {
          const light = 1 - Math.sqrt(part.bytes[from + i] / 255);
          const mixed = ink.map((x, k) => x + (paper[k] - x) * light);
          image.data.set([...mixed, 255], 4 * i);
        }
        context.putImageData(image, 0, 0);
        canvas.addEventListener("click", () => {
          Object.assign(state, {layer: layer, head: head});
          drawAll();
        });
      }
    }
  }

  function drawAll() {
    drawMenus();
    drawView();
    drawPanels();
  }
  drawAll();
}
