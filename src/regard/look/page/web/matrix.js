// A matrix of weights, queries from top to bottom, keys from left to right; an alignment is one between two texts.

const MOST_CELLS = 512; // above which a cell stands for several
const LABELLED = 11; // pixels of a cell that has a label
const FIELD = 512; // the least pixels of a matrix without labels
const WIDEST_LABEL = 110;

const crosses = (layer) => layer.group === "Cross-attention";

class Matrix {
  constructor(data, state, set, aligns) {
    Object.assign(this, { data, state, set, aligns });
    this.canvas = el("canvas", {});
    this.cursor = null;
    this.readout = el("p", { class: "cell", "aria-hidden": "true" });
    this.live = el("p", { class: "hidden", role: "status", "aria-live": "polite" });
    this.note = el("p", { class: "faint" });
    this.field = el(
      "div",
      {
        class: "field",
        tabindex: "0",
        role: "application",
        "aria-roledescription": "matrix",
        onkeydown: (event) => this.key(event),
        onmousemove: (event) => this.point(event),
        onmouseleave: () => this.showCell(this.cursor),
        onclick: (event) => this.choose(event),
      },
      this.canvas,
    );
    this.title = el("h3", {});
    this.element = el("div", { class: "matrix" }, this.title, this.readout, this.field, this.note, this.live);
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  // The chosen layer; in the alignment view all cross-attention layers, unless one of them is chosen.
  layers() {
    const chosen = this.data.layers[this.state.layer];
    if (!this.aligns || crosses(chosen)) return [chosen];
    const all = this.data.layers.filter(crosses);
    return all.filter((layer) => String(layer.of) === String(all[0].of));
  }

  async update() {
    const { data, state } = this;
    const layers = this.layers();
    const requested = String([layers.map((layer) => layer.index), state.example]);
    this.requested = requested;
    const parts = await Promise.all(
      layers.map(async (layer) => ({
        matrix: await data.part("matrix", state.example, layer),
        links: await data.part("links", state.example, layer),
      })),
    );
    if (this.requested !== requested) return;
    const one = layers.length === 1;
    const sources = layers.map((layer, i) => ({
      layer,
      ...parts[i],
      heads: one && state.head !== null ? [state.head] : [...layer.heads.keys()],
    }));
    const [queries, keys] = state.units(layers[0]);
    Object.assign(this, { queries, keys, from: layers[0] });
    this.cells = cells(sources, queries, keys, MOST_CELLS);
    this.end = scaleEnd(this.cells.values.reduce((a, b) => Math.max(a, b), 0));
    const head = state.head === null || !one ? "mean of heads" : `head ${layers[0].heads[state.head]}`;
    this.title.textContent = one
      ? `Layer ${layers[0].label}, ${head}`
      : `Mean of ${counted(layers.length, "layer")}, all heads`;
    this.field.setAttribute(
      "aria-label",
      `Weights; rows: queries (${queries.count}), columns: keys (${keys.count}). Move with the arrow keys.`,
    );
    this.note.textContent = this.remark(sources);
    this.cursor = null;
    this.draw();
    this.showCell(null);
  }

  remark(sources) {
    if (sources.some(({ matrix, links }) => !matrix && !links)) return "Neither weights nor links were recorded.";
    const sparse = sources.some(({ matrix }) => !matrix)
      ? "Drawn from the recorded links: the whole matrix needs watch(model, Observe(weights=True)). "
      : "";
    const pooled =
      this.cells.rows < this.queries.count || this.cells.columns < this.keys.count
        ? "Each point is the heaviest of several pairs."
        : "";
    return sparse + pooled;
  }

  draw() {
    if (!this.cells || !this.element.offsetParent) return;
    const { rows, columns, values } = this.cells;
    const { dark } = this.state;
    const ratio = window.devicePixelRatio || 1;
    const context = this.canvas.getContext("2d");
    const font = "12px system-ui, sans-serif";
    context.font = font;
    const exact = rows === this.queries.count && columns === this.keys.count;
    const labels = (units, count) => Array.from({ length: count }, (_, i) => clip(context, units.label(i)));
    const available = this.element.clientWidth - 8;
    const guess = available / (columns + 6);
    const labelled = exact && guess >= LABELLED && rows <= 400;
    const rowLabels = labelled ? labels(this.queries, rows) : [];
    const columnLabels = labelled ? labels(this.keys, columns) : [];
    const widest = (texts) => texts.reduce((most, text) => Math.max(most, context.measureText(text).width), 0);
    const left = labelled ? Math.ceil(widest(rowLabels)) + 10 : 0;
    const cell = Math.min(34, (available - left) / columns);
    const fits = Math.min(available / columns, Math.max(this.field.clientHeight, FIELD) / rows);
    const side = labelled ? Math.max(LABELLED, Math.floor(cell)) : Math.max(1, Math.floor(fits));
    const upright = widest(columnLabels) <= side - 4;
    const top = labelled ? (upright ? 20 : Math.ceil(widest(columnLabels)) + 10) : 0;
    const [width, height] = [left + side * columns, top + side * rows];
    Object.assign(this.canvas, { width: Math.ceil(width * ratio), height: Math.ceil(height * ratio) });
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    this.place = { left, top, side };
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    context.drawImage(picture(rows, columns, values, this.end, dark), left, top, side * columns, side * rows);
    const ink = getComputedStyle(this.element).getPropertyValue("--ink");
    context.font = font;
    context.fillStyle = ink;
    context.textBaseline = "middle";
    if (side >= LABELLED)
      gaps(context, left, top, side, rows, columns, getComputedStyle(this.element).getPropertyValue("--paper"));
    context.fillStyle = ink;
    context.textAlign = "right";
    rowLabels.forEach((text, i) => context.fillText(text, left - 6, top + (i + 0.5) * side));
    columnLabels.forEach((text, i) => slanted(context, text, left + (i + 0.5) * side, top - 6, upright));
    this.frame(context);
  }

  frame(context) {
    if (!this.cursor) return;
    const { left, top, side } = this.place;
    const size = Math.max(side, 6);
    context.strokeStyle = `rgb(${getComputedStyle(this.element).getPropertyValue("--warm")})`;
    context.lineWidth = 2;
    const [row, column] = this.cursor;
    context.strokeRect(left + column * side + (side - size) / 2, top + row * side + (side - size) / 2, size, size);
  }

  at(event) {
    const box = this.canvas.getBoundingClientRect();
    const { left, top, side } = this.place;
    const row = Math.floor((event.clientY - box.top - top) / side);
    const column = Math.floor((event.clientX - box.left - left) / side);
    return row >= 0 && column >= 0 && row < this.cells.rows && column < this.cells.columns ? [row, column] : null;
  }

  point(event) {
    this.showCell(this.at(event) || this.cursor);
  }

  choose(event) {
    const at = this.at(event);
    if (at) this.go(at);
  }

  go(at) {
    this.cursor = at;
    this.draw();
    this.showCell(at);
    this.live.textContent = this.readout.textContent;
  }

  key(event) {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Enter" && this.cursor) return this.pick();
    if (!moves[event.key] || !this.cells) return;
    event.preventDefault();
    const { rows, columns } = this.cells;
    const [row, column] = this.cursor || [0, 0];
    const [down, right] = this.cursor ? moves[event.key] : [0, 0];
    this.go([Math.min(rows - 1, Math.max(0, row + down)), Math.min(columns - 1, Math.max(0, column + right))]);
  }

  // The query under the cursor, shown in its text.
  pick() {
    const unit = Math.floor((this.cursor[0] * this.queries.count) / this.cells.rows);
    this.set({ view: "text", layer: this.from.index, picked: { side: "query", unit } });
  }

  // Show the weight of a cell.
  showCell(at) {
    if (!at || !this.cells) {
      this.readout.replaceChildren(el("span", { class: "faint" }, "rows attend to columns"));
      return;
    }
    const { rows, columns, values } = this.cells;
    const unit = (place, count, units) => {
      const first = Math.floor((place * units.count) / count);
      const last = Math.max(first, Math.floor(((place + 1) * units.count - 1) / count));
      return [
        el("bdi", { class: "token" }, units.label(first)),
        el("span", { class: "faint" }, first === last ? ` ${first}` : ` ${first} to ${last}`),
      ];
    };
    const weight = values[at[0] * columns + at[1]];
    this.readout.replaceChildren(
      ...unit(at[0], rows, this.queries),
      " → ",
      ...unit(at[1], columns, this.keys),
      el("strong", {}, `  ${percent(weight)}`),
    );
  }
}

// An image with one pixel a cell, to be scaled.
function picture(rows, columns, values, end, dark) {
  const canvas = el("canvas", { width: String(columns), height: String(rows) });
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  values.forEach((value, i) => image.data.set([...shade(value / end, dark), 255], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
}

function gaps(context, left, top, side, rows, columns, paper) {
  context.fillStyle = paper;
  for (let row = 1; row < rows; row++) context.fillRect(left, top + row * side - 0.5, side * columns, 1);
  for (let column = 1; column < columns; column++) context.fillRect(left + column * side - 0.5, top, 1, side * rows);
}

function slanted(context, text, x, y, upright) {
  context.save();
  context.translate(x, y);
  if (!upright) context.rotate(-Math.PI / 2);
  context.textAlign = upright ? "center" : "left";
  context.fillText(text, 0, upright ? -4 : 0);
  context.restore();
}

// The part of a label that fits.
function clip(context, text) {
  const chars = [...text];
  while (chars.length > 1 && context.measureText(chars.join("")).width > WIDEST_LABEL) chars.splice(-1, 1);
  return chars.length < [...text].length ? `${chars.slice(0, -1).join("")}…` : text;
}

VIEWS.push(
  { name: "matrix", title: "Matrix", fits: () => true, make: (data, state, set) => new Matrix(data, state, set, false) },
  {
    name: "alignment",
    title: "Alignment",
    fits: (data) => data.layers.some(crosses),
    make: (data, state, set) => new Matrix(data, state, set, true),
  },
);
