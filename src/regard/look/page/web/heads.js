// All heads at once: a tile for each, coloured by one number of its summary; beside the tiles, all numbers of one head.

const mean = (rows) =>
  NUMBERS.map((_, i) => {
    const known = rows.map((row) => row[i]).filter((value) => value !== null);
    return known.length ? known.reduce((a, b) => a + b, 0) / known.length : null;
  });

class Heads {
  constructor(data, state, set) {
    Object.assign(this, { data, state, set });
    this.groups = groupBy(data.layers);
    this.rows = [];
    this.scale = el("div", { class: "scale", "aria-hidden": "true" });
    this.card = el("div", { class: "card" });
    const colours = data.numbers.map((name) => [name, STATISTICS[name].title]);
    this.element = el(
      "section",
      { class: "heads", "aria-label": "All heads" },
      el("h2", {}, "Heads"),
      colours.length ? menu("coloured by", colours, state.colour, (colour) => set({ colour })) : null,
      this.scale,
      el("div", { class: "grids" }, ...[...this.groups].map(([name, layers]) => this.grid(name, layers))),
      this.card,
    );
    this.element.addEventListener("keydown", (event) => this.key(event));
    this.element.addEventListener("mouseleave", () => this.showCard(null));
  }

  grid(name, layers) {
    const widest = layers.reduce((most, layer) => (layer.heads.length > most.heads.length ? layer : most));
    const rows = [numbered(widest.heads), ...layers.map((layer) => this.row(layer))];
    const head = this.groups.size > 1 ? el("h3", {}, name) : null;
    const grid = el(
      "div",
      { class: "grid", role: "grid", "aria-label": `${name}: rows are layers, columns are heads` },
      ...rows,
    );
    const side = Math.min(34, Math.max(13, Math.floor(230 / widest.heads.length) - 2));
    return el("div", { style: `--side:${side}px` }, head, grid);
  }

  row(layer) {
    const cells = [null, ...layer.heads.keys()].map((head) => {
      const what = head === null ? layer.label : "";
      const cell = el(
        "button",
        {
          type: "button",
          role: head === null ? "rowheader" : "gridcell",
          class: head === null ? "layer" : "tile",
          tabindex: "-1",
          "aria-label": this.words(layer, head),
          onclick: () => this.set({ layer: layer.index, head }),
          onfocus: () => this.showCard({ layer, head }),
          onmouseenter: () => this.showCard({ layer, head }),
        },
        what,
      );
      cell.place = { layer, head };
      return cell;
    });
    this.rows.push(cells);
    return el("div", { role: "row" }, ...cells);
  }

  numbers({ layer, head }) {
    return head === null ? mean(layer.summaries) : layer.summaries[head];
  }

  words(layer, head) {
    const name =
      head === null
        ? `layer ${layer.label}, mean of ${counted(layer.heads.length, "head")}`
        : `layer ${layer.label}, head ${layer.heads[head]}`;
    const known = NUMBERS.map((key, i) => [key, this.numbers({ layer, head })[i]]).filter(([, value]) => value !== null);
    return `${name}: ${known.map(([key, value]) => `${STATISTICS[key].title} ${number(value)}`).join(", ")}`;
  }

  // Arrows move through the tiles of all groups, Home and End within a layer.
  key(event) {
    const row = this.rows.findIndex((cells) => cells.includes(event.target));
    if (row < 0) return;
    const column = this.rows[row].indexOf(event.target);
    const moves = {
      ArrowUp: [-1, 0],
      ArrowDown: [1, 0],
      ArrowLeft: [0, -1],
      ArrowRight: [0, 1],
      Home: [0, -column],
      End: [0, 1e6],
    };
    if (!moves[event.key]) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    const cells = this.rows[Math.min(this.rows.length - 1, Math.max(0, row + down))];
    cells[Math.min(cells.length - 1, Math.max(0, column + right))].focus();
  }

  // Show the numbers of a head, or of the one that is chosen.
  showCard(place) {
    const shown = place || { layer: this.data.layers[this.state.layer], head: this.state.head };
    const { layer, head } = shown;
    const numbers = this.numbers(shown);
    const which = head === null ? "mean of its heads" : `head ${layer.heads[head]}`;
    const rows = this.data.numbers.map((key) => {
      const value = numbers[NUMBERS.indexOf(key)];
      const share = STATISTICS[key].isShare ? value : value / this.most(key);
      return el(
        "div",
        { title: STATISTICS[key].meaning },
        el("dt", {}, STATISTICS[key].title),
        el("dd", {}, bar(share), el("span", {}, number(value))),
      );
    });
    this.card.replaceChildren(
      el("p", {}, el("strong", {}, `Layer ${layer.label} · ${which}`)),
      el("p", { class: "faint path" }, layer.name),
      el("dl", {}, ...rows),
    );
  }

  most(key) {
    const i = NUMBERS.indexOf(key);
    return Math.max(1e-9, ...this.data.about.summaries.map((numbers) => numbers[i] || 0));
  }

  update() {
    const { colour, layer, head, dark } = this.state;
    const i = NUMBERS.indexOf(colour);
    const most = colour ? this.most(colour) : 1;
    const end = STATISTICS[colour]?.isShare ? scaleEnd(most) : most;
    for (const cells of this.rows) {
      for (const cell of cells) {
        const { place } = cell;
        const chosen = place.layer.index === layer && place.head === head;
        cell.setAttribute("aria-selected", chosen);
        cell.tabIndex = chosen ? 0 : -1;
        if (place.head === null) continue;
        const value = place.layer.summaries[place.head][i];
        const isKnown = value !== null && value !== undefined;
        cell.classList.toggle("unknown", !isKnown);
        cell.style.backgroundColor = isKnown ? css(shade(value / end, dark)) : "";
      }
    }
    const stops = Array.from({ length: 9 }, (_, n) => css(shade(n / 8, dark))).join(", ");
    this.scale.replaceChildren(
      el("span", {}, "0"),
      el("span", { class: "gradient", style: `background: linear-gradient(to right, ${stops})` }),
      el("span", {}, number(end)),
    );
    this.showCard(null);
  }
}

function groupBy(layers) {
  const groups = new Map();
  for (const layer of layers) groups.set(layer.group, [...(groups.get(layer.group) || []), layer]);
  return groups;
}

// The numbers of the heads above their columns, as many as can be read.
function numbered(heads) {
  const every = heads.length > 16 ? 4 : 1;
  const columns = heads.map((head, i) => el("span", { role: "columnheader" }, i % every === 0 ? String(head) : ""));
  return el(
    "div",
    { role: "row", class: "numbered" },
    el("span", { role: "columnheader", class: "layer" }),
    ...columns,
  );
}
