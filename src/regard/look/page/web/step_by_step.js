// The computation of one query, step by step: q·k, scale, mask, softmax, weighted sum, with all numbers.

const PLAIN_EXPONENT = 4; // the largest score whose exponential is a readable number
const MOST_NUMBERS = 8; // of a vector; a longer one is drawn as a strip of colours
const MOST_TERMS = 3; // of a product that is spelt out

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const column = (matrix, j) => matrix.map((row) => row[j]);
const product = (rows, matrix) => rows.map((row) => matrix[0].map((_, j) => dot(row, column(matrix, j))));
const below = (digit) => String(digit).replace(/\d/g, (char) => "₀₁₂₃₄₅₆₇₈₉"[char]);
const above = (text) => el("sup", {}, text);
const written = (value) => (Number.isInteger(value) ? String(value) : number(value)).replace("-", "−");

// A worked example: two inputs as rows, and the three matrices that multiply them.
function workedExample() {
  const inputs = [[1, 1], [1, 0]]; // prettier-ignore
  const [query, key, value] = [[[1, 1], [0, 1]], [[0, 1], [1, -1]], [[1, 2], [3, -1]]]; // prettier-ignore
  const label = (i) => `a${below(i + 1)}`;
  return {
    name: "A worked example",
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

// The numbers of one query: products, scaled scores, scores with mask and bias, exponentials, weights, weighted sum.
function computed({ query, key, scale, added, value }, i) {
  const products = key.map((each) => dot(query[i], each));
  const scaled = products.map((each) => each * scale);
  const scores = added ? scaled.map((each, j) => each + added[i][j]) : scaled;
  const most = Math.max(...scores);
  const less = most > PLAIN_EXPONENT; // subtracted from all scores, as implementations do
  const exps = scores.map((score) => (most === -Infinity ? 0 : Math.exp(less ? score - most : score)));
  const sum = exps.reduce((a, b) => a + b, 0);
  const weights = exps.map((exp) => (sum ? exp / sum : 0));
  const output = value ? value[0].map((_, j) => dot(weights, column(value, j))) : null;
  return { products, scaled, scores, less, exps, sum, weights, output };
}

// The steps, each with its explanation and the column it adds.
function stages(source, i, { products, scaled, scores, less, exps, sum, weights, output }) {
  const [name, size] = [source.index(i), source.query[0].length];
  const root = Math.abs(source.scale - 1 / Math.sqrt(size)) < 1e-6 ? ` = 1 / √${size}` : "";
  const inputs = ["Each input a is multiplied by W", above("q"), " to a query, by W", above("k"), " to a key. "];
  const terms = (j) => source.query[i].map((value, n) => `${written(value)}·${written(source.key[j][n])}`).join(" + ");
  const ask = `The query q${name} is compared with the key k of each token.`;
  const agree = "The dot product q·k measures their similarity: multiply number by number, then add.";
  const times = `Multiply by ${number(source.scale)}${root}, so that softmax does not saturate for long vectors.`;
  const hide = "Add the model's bias, if any; masked positions get −∞.";
  const power = "Raise e to the power of each score: all results are positive, and large scores dominate.";
  const safe = less ? " The largest score is subtracted first, which does not change the weights." : "";
  const share = `Divide each by their sum, ${number(sum)}: the weights are from 0 to 1 and sum to 1.`;
  const exponent = above(less ? "score − largest" : "score");
  const lack = output ? "" : " The values are not recorded.";
  const add = `Multiply each value by its weight, then add: the output b${name}.${lack}`;
  return [
    { name: "query and keys", explanation: [...(source.inputs ? inputs : []), ask] },
    { name: "q·k", column: ["q·k"], values: products, terms: size <= MOST_TERMS ? terms : null, explanation: [agree] },
    { name: "scale", column: ["score"], values: scaled, explanation: [times] },
    source.added ? { name: "mask", column: ["masked"], values: scores, explanation: [hide] } : null,
    { name: "exponential", column: ["e", exponent], values: exps, explanation: [power + safe] },
    { name: "softmax", column: ["weight"], values: weights, bars: true, explanation: [share] },
    { name: "weighted sum", column: output && ["value"], output, explanation: [add] },
  ].filter(Boolean);
}

class StepByStep {
  constructor(data, state, set) {
    Object.assign(this, { data, state, set });
    this.step = 0;
    this.query = null;
    this.isWorkedExample = !data.layers.some((layer) => layer.steps);
    [this.title, this.chooser, this.switcher] = [el("h3", {}), el("span", {}), el("span", {})];
    const controls = el("div", { class: "controls" }, this.title, this.chooser, this.switcher);
    this.walk = el("ol", { class: "walk" });
    this.explanation = el("p", { class: "explanation", "aria-live": "polite" });
    this.table = el("div", { class: "scroll" });
    this.element = el("div", { class: "steps" }, controls, this.walk, this.explanation, this.table);
  }

  async update() {
    const { data, state } = this;
    const [layer, example] = [data.layers[state.layer], state.example];
    const inputs = await data.part("steps", example, layer);
    if (layer !== data.layers[state.layer] || example !== state.example) return; // chosen in the meantime
    this.own = inputs && this.ofModel(layer, inputs);
    if (state.picked?.side === "query" && !this.isWorkedExample) {
      this.query = Math.max(0, state.units(layer)[0].starts[state.picked.unit] - layer.first);
    }
    this.switcher.replaceChildren(this.switch());
    this.begin();
  }

  // The model's own vectors, of the chosen head or the first.
  ofModel(layer, { query, key, added }) {
    const head = this.state.head ?? 0;
    const [queries, keys] = layer.of.map((text) => this.data.units(text, this.state.example, false));
    const labels = [query[head].map((_, i) => queries.label(layer.first + i)), key[head].map((_, j) => keys.label(j))];
    const { scale } = layer.steps;
    const name = `Layer ${layer.label}, head ${layer.heads[head]}`;
    const of = { query: query[head], key: key[head], added: added && added[head] };
    return { name, ...of, value: null, scale, first: layer.first, labels, index: () => "" };
  }

  // Choose the source of the numbers, and the query.
  begin() {
    this.source = this.isWorkedExample || !this.own ? workedExample() : this.own;
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
      const why = "The model's own numbers need watch(model, keep_inputs=True), a dot-product score and at most 64 tokens.";
      return el("p", { class: "faint" }, why);
    }
    const kinds = [["model", "the model"], ["example", "a small example"]]; // prettier-ignore
    return segments("numbers of", kinds, this.isWorkedExample ? "example" : "model", (kind) => {
      Object.assign(this, { isWorkedExample: kind === "example", query: null });
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
    this.explanation.replaceChildren(...steps[this.step].explanation);
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
    const line = (name, values) => el("p", { class: "equation" }, `${name} = `, vector(values));
    return [
      ...(source.inputs || []).map((input, i) => line(`a${below(i + 1)}`, input)),
      line(`q${source.index(query)}`, source.query[query]),
      el("table", {}, el("thead", {}, el("tr", {}, ...heads, ...more)), el("tbody", {}, ...body)),
      ...(last.output ? [line(`b${source.index(query)}`, last.output)] : []),
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

// A vector as its numbers, or a long one as a strip of colours, from negative through zero to positive.
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
