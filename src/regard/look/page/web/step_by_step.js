// One query, step by step: q·k, scale, mask, softmax, weighted sum, with the numbers.

const PLAIN_EXPONENT = 4; // the greatest score whose exponential is a number that one can read
const MOST_NUMBERS = 8; // of a vector; of a longer one they are colours alone
const MOST_TERMS = 3; // of a product that is written out

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const column = (matrix, j) => matrix.map((row) => row[j]);
const product = (rows, matrix) => rows.map((row) => matrix[0].map((_, j) => dot(row, column(matrix, j))));
const below = (digit) => String(digit).replace(/\d/g, (char) => "₀₁₂₃₄₅₆₇₈₉"[char]);
const above = (text) => el("sup", {}, text);
const written = (value) => (Number.isInteger(value) ? String(value) : number(value)).replace("-", "−");

// The example that is taught: two inputs as rows, and the three matrices they are multiplied by.
function taught() {
  const inputs = [[1, 1], [1, 0]]; // prettier-ignore
  const [query, key, value] = [[[1, 1], [0, 1]], [[0, 1], [1, -1]], [[1, 2], [3, -1]]]; // prettier-ignore
  const label = (i) => `a${below(i + 1)}`;
  return {
    name: "The example that is taught",
    inputs,
    query: product(inputs, query),
    key: product(inputs, key),
    value: product(inputs, value),
    scale: 1 / Math.sqrt(2),
    first: 0,
    labels: [inputs.map((_, i) => label(i)), inputs.map((_, i) => label(i))],
    index: (i) => below(i + 1),
  };
}

// Numbers of one query: products, scaled, with what is added, exponentials, weights, and the weighted sum.
function computed({ query, key, scale, added, value }, i) {
  const products = key.map((each) => dot(query[i], each));
  const scaled = products.map((each) => each * scale);
  const scores = added ? scaled.map((each, j) => each + added[i][j]) : scaled;
  const most = Math.max(...scores);
  const less = most > PLAIN_EXPONENT; // taken away from all scores, as computers do it
  const exps = scores.map((score) => (most === -Infinity ? 0 : Math.exp(less ? score - most : score)));
  const sum = exps.reduce((a, b) => a + b, 0);
  const weights = exps.map((exp) => (sum ? exp / sum : 0));
  const output = value ? value[0].map((_, j) => dot(weights, column(value, j))) : null;
  return { products, scaled, scores, less, exps, sum, weights, output };
}

// The steps, each with what is said of it and the column it adds.
function stages(source, i, { products, scaled, scores, less, exps, sum, weights, output }) {
  const [name, size] = [source.index(i), source.query[0].length];
  const root = Math.abs(source.scale - 1 / Math.sqrt(size)) < 1e-6 ? ` = 1 / √${size}` : "";
  const inputs = ["Each input a is multiplied by W", above("q"), " to a query, by W", above("k"), " to a key. "];
  const terms = (j) => source.query[i].map((value, n) => `${written(value)}·${written(source.key[j][n])}`).join(" + ");
  const ask = `The query q${name} asks; every token offers a key k.`;
  const agree = "How well do they agree? Multiply number by number, and add up.";
  const times = `Times ${number(source.scale)}${root}, so that long vectors do not make softmax too sure.`;
  const hide = "What may not be seen gets −∞; where the model has a bias of the places, it is added.";
  const power = "e to the power of each: all are above 0, and what is greater stands out.";
  const safe = less ? " The greatest score is taken away first, which changes no weight." : "";
  const share = `Each divided by their sum, ${number(sum)}: weights from 0 to 1 that sum to 1.`;
  const exponent = above(less ? "score − greatest" : "score");
  const lack = output ? "" : " The values are not kept.";
  const add = `Each value times its weight, added up: the output b${name}.${lack}`;
  return [
    { name: "query and keys", says: [...(source.inputs ? inputs : []), ask] },
    { name: "q·k", column: ["q·k"], values: products, terms: size <= MOST_TERMS ? terms : null, says: [agree] },
    { name: "scale", column: ["score"], values: scaled, says: [times] },
    source.added ? { name: "mask", column: ["masked"], values: scores, says: [hide] } : null,
    { name: "exponential", column: ["e", exponent], values: exps, says: [power + safe] },
    { name: "softmax", column: ["weight"], values: weights, bars: true, says: [share] },
    { name: "weighted sum", column: output && ["value"], output, says: [add] },
  ].filter(Boolean);
}

class StepByStep {
  constructor(data, state, set) {
    Object.assign(this, { data, state, set });
    this.step = 0;
    this.query = null;
    this.isTaught = !data.layers.some((layer) => layer.steps);
    [this.title, this.chooser, this.switcher] = [el("h3", {}), el("span", {}), el("span", {})];
    const controls = el("div", { class: "controls" }, this.title, this.chooser, this.switcher);
    this.walk = el("ol", { class: "walk" });
    this.said = el("p", { class: "said", "aria-live": "polite" });
    this.table = el("div", { class: "scroll" });
    this.element = el("div", { class: "steps" }, controls, this.walk, this.said, this.table);
  }

  async update() {
    const { data, state } = this;
    const [layer, example] = [data.layers[state.layer], state.example];
    const kept = await data.part("steps", example, layer);
    if (layer !== data.layers[state.layer] || example !== state.example) return; // chosen in the meantime
    this.own = kept && this.ofModel(layer, kept);
    if (state.picked?.side === "query" && !this.isTaught) {
      this.query = Math.max(0, state.units(layer)[0].starts[state.picked.unit] - layer.first);
    }
    this.switcher.replaceChildren(this.switch());
    this.begin();
  }

  // The model's own vectors, of the head that is chosen, or of the first.
  ofModel(layer, { query, key, added }) {
    const head = this.state.head ?? 0;
    const [queries, keys] = layer.of.map((text) => this.data.units(text, this.state.example, false));
    const labels = [query[head].map((_, i) => queries.label(layer.first + i)), key[head].map((_, j) => keys.label(j))];
    const { scale } = layer.steps;
    const name = `Layer ${layer.label}, head ${layer.heads[head]}`;
    const of = { query: query[head], key: key[head], added: added && added[head] };
    return { name, ...of, value: null, scale, first: layer.first, labels, index: () => "" };
  }

  // Choose whose numbers, and which query.
  begin() {
    this.source = this.isTaught || !this.own ? taught() : this.own;
    const last = this.source.query.length - 1;
    this.query = Math.min(this.query ?? (this.source.inputs ? 0 : last), last);
    const name = (i) => `${this.source.labels[0][i]}${this.source.inputs ? "" : ` ${this.source.first + i}`}`;
    const options = this.source.query.map((_, i) => [String(i), name(i)]);
    const choose = menu("query", options, String(this.query), (value) => {
      this.query = Number(value);
      this.draw();
    });
    this.title.textContent = this.source.name;
    this.chooser.replaceChildren(choose);
    this.draw();
  }

  switch() {
    if (!this.own) {
      const why = "The model's own numbers need watch(model, keep_inputs=True) and a short text.";
      return el("p", { class: "faint" }, why);
    }
    const kinds = [["model", "the model"], ["taught", "a small example"]]; // prettier-ignore
    return segments("numbers of", kinds, this.isTaught ? "taught" : "model", (kind) => {
      Object.assign(this, { isTaught: kind === "taught", query: null });
      this.begin();
    });
  }

  draw() {
    const numbers = computed(this.source, this.query);
    const steps = stages(this.source, this.query, numbers);
    this.step = Math.min(this.step, steps.length - 1);
    const active = this.element.getRootNode().activeElement;
    const hasFocus = this.walk.contains(active);
    const buttons = steps.map(({ name }, i) => this.button(`${i + 1} ${name}`, i, steps.length));
    this.walk.replaceChildren(...buttons.map((button) => el("li", {}, button)));
    if (hasFocus) buttons[this.step].focus();
    this.said.replaceChildren(...steps[this.step].says);
    this.table.replaceChildren(...this.rows(steps.slice(0, this.step + 1)));
  }

  button(text, i, count) {
    const go = (step) => {
      this.step = Math.min(count - 1, Math.max(0, step));
      this.draw();
    };
    const attributes = {
      type: "button",
      class: i <= this.step ? "done" : "",
      "aria-current": i === this.step ? "step" : null,
      onclick: () => go(i),
      onkeydown: (event) => {
        if (!FORWARD[event.key]) return;
        event.preventDefault();
        go(i + FORWARD[event.key]);
      },
    };
    return el("button", attributes, text);
  }

  rows(steps) {
    const { source, query } = this;
    const last = steps[steps.length - 1];
    const columns = steps.filter((step) => step.column);
    const now = (step) => (step === last ? "now" : "");
    const heads = [["token"], ["key"]].map((text) => el("th", { scope: "col" }, ...text));
    const more = columns.map((step) => el("th", { scope: "col", class: now(step) }, ...step.column));
    const body = source.key.map((key, j) => {
      const label = el("th", { scope: "row" }, el("bdi", {}, source.labels[1][j]));
      return el("tr", {}, label, el("td", {}, vector(key)), ...columns.map((step) => this.cell(step, j, now(step))));
    });
    const said = (name, values) => el("p", { class: "asked" }, `${name} = `, vector(values));
    return [
      ...(source.inputs || []).map((input, i) => said(`a${below(i + 1)}`, input)),
      said(`q${source.index(query)}`, source.query[query]),
      el("table", {}, el("thead", {}, el("tr", {}, ...heads, ...more)), el("tbody", {}, ...body)),
      ...(last.output ? [said(`b${source.index(query)}`, last.output)] : []),
    ];
  }

  cell(step, j, now) {
    if (step.output) return el("td", { class: now }, vector(this.source.value[j]));
    const value = step.values[j];
    const text = value === -Infinity ? "−∞" : written(value);
    const terms = now && step.terms ? `${step.terms(j)} = ` : "";
    return el("td", { class: now }, step.bars ? bar(value) : null, terms + text);
  }
}

// A vector as its numbers, or where they are many as a strip of colours, from negative over nothing to positive.
function vector(values) {
  if (values.length <= MOST_NUMBERS) return el("span", { class: "vector" }, `(${values.map(written).join(", ")})`);
  const most = Math.max(...values.map(Math.abs)) || 1;
  const cells = values.map((value) => {
    const style = `--share:${Math.abs(value) / most}`;
    return el("i", { class: value < 0 ? "minus" : "plus", style, title: number(value) });
  });
  const name = `${values.length} numbers up to ${number(most)}`;
  return el("span", { class: "vector strip", role: "img", "aria-label": name }, ...cells);
}

VIEWS.push({
  name: "steps",
  title: "Step by step",
  fits: () => true,
  make: (data, state, set) => new StepByStep(data, state, set),
});
