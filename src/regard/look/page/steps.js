// One query, step by step: q·k, scale, mask, softmax, weighted sum, with the numbers.

// The example that is taught: two inputs as rows, and the three matrices they are multiplied by.
const TAUGHT = {
  inputs: [
    [1, 1],
    [1, 0],
  ],
  query: [
    [1, 1],
    [0, 1],
  ],
  key: [
    [0, 1],
    [1, -1],
  ],
  value: [
    [1, 2],
    [3, -1],
  ],
};
const PLAIN_EXPONENT = 4; // the greatest score whose exponential is a number that one can read
const MOST_NUMBERS = 8; // of a vector; of a longer one they are colours alone

const dot = (a, b) => a.reduce((sum, value, i) => sum + value * b[i], 0);
const product = (rows, matrix) =>
  rows.map((row) =>
    matrix[0].map((_, j) =>
      dot(
        row,
        matrix.map((line) => line[j]),
      ),
    ),
  );

// Numbers of one query: products, scaled, with what is added, exponentials, weights, and the weighted sum.
function computed(query, keys, scale, added, values) {
  const products = keys.map((key) => dot(query, key));
  const scaled = products.map((value) => value * scale);
  const scores = added ? scaled.map((value, i) => value + added[i]) : scaled;
  const most = Math.max(...scores);
  const less = most > PLAIN_EXPONENT; // taken away from all scores, as computers do it
  const exps = scores.map((value) => (most === -Infinity ? 0 : Math.exp(less ? value - most : value)));
  const sum = exps.reduce((a, b) => a + b, 0);
  const weights = exps.map((value) => (sum ? value / sum : 0));
  const output = values
    ? values[0].map((_, j) =>
        dot(
          weights,
          values.map((value) => value[j]),
        ),
      )
    : null;
  return { products, scaled, scores, less, exps, sum, weights, output };
}

class Steps {
  constructor(data, state, set) {
    Object.assign(this, { data, state, set });
    this.step = 0;
    this.query = null;
    this.taught = !data.layers.some((layer) => layer.steps);
    this.bars = el("div", { class: "controls" });
    this.walk = el("ol", { class: "walk" });
    this.said = el("p", { class: "said", "aria-live": "polite" });
    this.table = el("div", { class: "scroll" });
    this.element = el("div", { class: "steps" }, this.bars, this.walk, this.said, this.table);
  }

  async update() {
    const { data, state } = this;
    const layer = data.layers[state.layer];
    const own = await data.part("steps", state.example, layer);
    if (layer !== data.layers[state.layer]) return;
    this.kept = own && { ...own, layer };
    if (state.picked?.side === "query" && !this.taught)
      this.query = state.units(layer)[0].starts[state.picked.unit] - layer.first;
    this.draw();
  }

  // What is computed on: the model's own vectors of the head chosen, or the example that is taught.
  source() {
    if (this.taught || !this.kept) {
      const [query, key, value] = ["query", "key", "value"].map((name) => product(TAUGHT.inputs, TAUGHT[name]));
      return {
        name: "The example that is taught",
        inputs: TAUGHT.inputs,
        query,
        key,
        value,
        added: null,
        scale: 1 / Math.sqrt(2),
        label: (i) => `a${below(i + 1)}`,
      };
    }
    const { layer, query, key, added } = this.kept;
    const head = this.state.head ?? 0;
    const [queries, keys] =
      this.data.about.texts && [layer.of[0], layer.of[1]].map((at) => this.data.units(at, this.state.example, false));
    return {
      name: `Layer ${layer.label}, head ${layer.heads[head]}`,
      query: query[head],
      key: key[head],
      value: null,
      added: added && added[head],
      scale: layer.steps.scale,
      first: layer.first,
      label: (i, side) => (side === "query" ? queries.label(layer.first + i) : keys.label(i)),
    };
  }

  draw() {
    const source = this.source();
    const last = source.query.length - 1;
    this.query = Math.min(this.query ?? (source.inputs ? 0 : last), last);
    const numbers = computed(
      source.query[this.query],
      source.key,
      source.scale,
      source.added?.[this.query],
      source.value,
    );
    const steps = this.stages(source, numbers);
    this.step = Math.min(this.step, steps.length - 1);
    const again = (change) => () => {
      change();
      this.draw();
    };
    const options = source.query.map((_, i) => [
      String(i),
      source.inputs ? source.label(i) : `${source.label(i, "query")} ${source.first + i}`,
    ]);
    const choose = menu("query", options, String(this.query), (value) => again(() => (this.query = Number(value)))());
    const whose = this.kept
      ? segments(
          "numbers of",
          [
            ["model", "the model"],
            ["taught", "a small example"],
          ],
          this.taught ? "taught" : "model",
          (key) => again(() => Object.assign(this, { taught: key === "taught", query: null }))(),
        )
      : el(
          "p",
          { class: "faint" },
          this.taught ? "A small example: the model's own numbers need watch(model, keep=True) and a short text." : "",
        );
    this.bars.replaceChildren(el("h3", {}, source.name), choose, whose);
    const buttons = steps.map(({ name }, i) =>
      el(
        "li",
        {},
        el(
          "button",
          {
            type: "button",
            "aria-current": i === this.step ? "step" : null,
            class: i <= this.step ? "done" : "",
            onclick: again(() => (this.step = i)),
            onkeydown: (event) => this.key(event, steps.length),
          },
          `${i + 1} ${name}`,
        ),
      ),
    );
    const focused =
      this.walk.contains(document.activeElement) || this.walk.contains(this.element.getRootNode().activeElement);
    this.walk.replaceChildren(...buttons);
    if (focused) buttons[this.step].firstChild.focus();
    this.said.replaceChildren(...steps[this.step].says);
    this.table.replaceChildren(this.rows(source, numbers, steps.slice(0, this.step + 1)));
  }

  key(event, count) {
    const by = FORWARD[event.key];
    if (!by) return;
    event.preventDefault();
    this.step = Math.min(count - 1, Math.max(0, this.step + by));
    this.draw();
  }

  stages(source, { products, scaled, scores, less, exps, sum, weights, output }) {
    const i = source.inputs ? below(this.query + 1) : "";
    const scale = `${number(source.scale)}`;
    const power = (name) => el("sup", {}, name);
    const inputs = ["Each input a is multiplied by W", power("q"), " to a query, by W", power("k"), " to a key. "];
    const asks = `The query q${i} asks; every token offers a key k.`;
    const stages = [
      { name: "query and keys", says: [...(source.inputs ? inputs : []), asks] },
      {
        name: "q·k",
        column: "q·k",
        values: products,
        says: ["How well do they agree? Multiply number by number, and add up."],
      },
      {
        name: "scale",
        column: "score",
        values: scaled,
        says: [
          `Times ${scale}${Math.abs(source.scale - 1 / Math.sqrt(source.query[0].length)) < 1e-6 ? ` = 1 / √${source.query[0].length}` : ""}, so that long vectors do not make softmax too sure.`,
        ],
      },
    ];
    if (source.added)
      stages.push({
        name: "mask",
        column: "masked",
        values: scores,
        says: ["What may not be seen gets −∞; a bias of the places is added, too, where the model has one."],
      });
    stages.push(
      {
        name: "exponential",
        column: less ? "e^(score − greatest)" : ["e", power("score")],
        values: exps,
        says: [
          `e to the power of each: all above 0, and what is greater stands out.${less ? " The greatest score is taken away first, which changes no weight." : ""}`,
        ],
      },
      {
        name: "softmax",
        column: "weight",
        values: weights,
        share: true,
        says: [`Each divided by their sum, ${number(sum)}: weights from 0 to 1 that sum to 1.`],
      },
    );
    if (output)
      stages.push({
        name: "weighted sum",
        column: "value",
        output,
        says: [`Each value times its weight, added up: the output b${i}.`],
      });
    return stages;
  }

  rows(source, numbers, stages) {
    const last = stages[stages.length - 1];
    const columns = stages.filter((stage) => stage.column);
    const head = el(
      "tr",
      {},
      el("th", { scope: "col" }, "token"),
      el("th", { scope: "col" }, "key"),
      ...columns.map((stage) =>
        el("th", { scope: "col", class: stage === last ? "now" : "" }, ...[stage.column].flat()),
      ),
    );
    const body = source.key.map((key, j) =>
      el(
        "tr",
        {},
        el("th", { scope: "row" }, el("bdi", {}, source.label(j, "key"))),
        el("td", {}, vector(key)),
        ...columns.map((stage) => this.cell(source, stage, j, stage === last)),
      ),
    );
    const asked = el(
      "p",
      { class: "asked" },
      `q${source.inputs ? below(this.query + 1) : ""} = `,
      vector(source.query[this.query]),
    );
    const output = last.output
      ? el("p", { class: "asked" }, `b${source.inputs ? below(this.query + 1) : ""} = `, vector(last.output))
      : null;
    const inputs = source.inputs
      ? el(
          "p",
          { class: "faint asked" },
          ...source.inputs.flatMap((input, i) => [`a${below(i + 1)} = `, vector(input), "  "]),
        )
      : null;
    return el("div", {}, inputs, asked, el("table", {}, el("thead", {}, head), el("tbody", {}, ...body)), output);
  }

  cell(source, stage, j, now) {
    const kind = now ? "now" : "";
    if (stage.output) return el("td", { class: kind }, vector(source.value[j]));
    const value = stage.values[j];
    const text = value === -Infinity ? "−∞" : written(value);
    return el("td", { class: `figure ${kind}` }, stage.share ? bar(value) : null, text);
  }
}

const below = (digit) => String(digit).replace(/\d/g, (char) => "₀₁₂₃₄₅₆₇₈₉"[char]);

const written = (value) => (Number.isInteger(value) ? String(value) : number(value)).replace("-", "−");

// A vector as its numbers, or where they are many as a strip of colours, from negative over nothing to positive.
function vector(values) {
  if (values.length <= MOST_NUMBERS) {
    const text = values.map(written).join(", ");
    return el("span", { class: "vector" }, `(${text})`);
  }
  const most = Math.max(...values.map(Math.abs)) || 1;
  const cells = values.map((value) =>
    el("i", { class: value < 0 ? "minus" : "plus", style: `--share:${Math.abs(value) / most}`, title: number(value) }),
  );
  return el(
    "span",
    { class: "vector strip", role: "img", "aria-label": `${values.length} numbers up to ${number(most)}` },
    ...cells,
  );
}
