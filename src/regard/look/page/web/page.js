// The page: the choices of the user, and the parts that show them.

let pages = 0;

// Show the data in an element. `read(key)` returns the compressed bytes of "example.layer.kind"; the function returned
// removes all listeners again.
function show(root, about, read) {
  const data = new Data(about, read);
  const prefix = `regard-${pages++}`;
  const night = window.matchMedia("(prefers-color-scheme: dark)");
  const unitsByKey = new Map();
  const state = {
    example: 0,
    layer: 0,
    head: null,
    merged: data.hasWords,
    colour: data.numbers[0] || null,
    picked: null,
    view: VIEWS[0].name,
    theme: "auto",
    dark: night.matches,
    // The units of a layer's queries and keys, the same objects until the choice changes.
    units: (layer) =>
      layer.of.map((text) => {
        const key = `${text}.${state.example}.${state.merged}`;
        if (!unitsByKey.has(key)) unitsByKey.set(key, data.units(text, state.example, state.merged));
        return unitsByKey.get(key);
      }),
  };

  const set = (changes) => {
    const [was, other] = [data.layers[state.layer], "layer" in changes || "merged" in changes || "example" in changes];
    if ("merged" in changes && state.picked) changes.picked = moved(was, changes.merged);
    Object.assign(state, changes);
    if (other && !("picked" in changes) && String(was.of) !== String(data.layers[state.layer].of)) state.picked = null;
    if ("example" in changes) state.picked = null;
    state.dark = state.theme === "auto" ? night.matches : state.theme === "dark";
    update();
  };

  // The unit that holds the first token of the one that was picked.
  const moved = (layer, merged) => {
    const side = state.picked.side === "query" ? 0 : 1;
    const token = state.units(layer)[side].starts[state.picked.unit];
    return { ...state.picked, unit: data.units(layer.of[side], state.example, merged).of[token] };
  };

  const heads = new Heads(data, state, set);
  const views = VIEWS.filter((view) => view.fits(data)).map((view) => ({
    ...view,
    shown: view.make(data, state, set, prefix),
  }));
  const tabs = tablist(prefix, views, set);
  const panels = views.map(({ name, shown }) =>
    el(
      "div",
      { role: "tabpanel", id: `${prefix}-panel-${name}`, "aria-labelledby": `${prefix}-tab-${name}` },
      shown.element,
    ),
  );

  const main = el("main", {}, el("div", { role: "tablist", "aria-label": "Views" }, ...tabs), ...panels);
  let turns = 0;

  const update = () => {
    root.dataset.theme = state.dark ? "dark" : "light";
    heads.update();
    views.forEach(({ name }, i) => {
      const chosen = name === state.view;
      tabs[i].setAttribute("aria-selected", chosen);
      tabs[i].tabIndex = chosen ? 0 : -1;
      panels[i].hidden = !chosen;
    });
    const turn = ++turns;
    main.setAttribute("aria-busy", "true");
    views
      .find(({ name }) => name === state.view)
      .shown.update()
      .catch((error) => fail(root, error))
      .finally(() => turn === turns && main.setAttribute("aria-busy", "false"));
  };

  root.replaceChildren(
    top(data, state, set),
    heads.element,
    main,
    el("footer", {}, ...data.about.notes.map((note) => el("p", {}, note))),
  );
  const changed = () => set({});
  night.addEventListener("change", changed);
  update();
  return () => night.removeEventListener("change", changed);
}

function top(data, state, set) {
  const count = data.layers.reduce((sum, layer) => sum + layer.heads.length, 0);
  const tokens = Math.max(...data.layers.map((layer) => layer.keys));
  const facts = [counted(data.layers.length, "layer"), counted(count, "head"), counted(tokens, "token")].join(", ");
  const examples = Array.from({ length: data.examples }, (_, i) => [String(i), String(i + 1)]);
  return el(
    "header",
    {},
    el("div", {}, el("h1", {}, data.about.title), el("p", { class: "faint" }, facts)),
    el(
      "div",
      { class: "controls" },
      data.examples > 1 ? menu("example", examples, "0", (value) => set({ example: Number(value) })) : null,
      data.hasWords
        ? segments(
            "units",
            [
              ["words", "Words"],
              ["tokens", "Tokens"],
            ],
            "words",
            (key) => set({ merged: key === "words" }),
          )
        : null,
      segments(
        "colours",
        [
          ["auto", "Auto"],
          ["light", "Light"],
          ["dark", "Dark"],
        ],
        state.theme,
        (theme) => set({ theme }),
      ),
    ),
  );
}

function tablist(prefix, views, set) {
  const tabs = views.map(({ name, title }) =>
    el(
      "button",
      {
        type: "button",
        role: "tab",
        id: `${prefix}-tab-${name}`,
        "aria-controls": `${prefix}-panel-${name}`,
        onclick: () => set({ view: name }),
      },
      title,
    ),
  );
  tabs.forEach((tab, i) =>
    tab.addEventListener("keydown", (event) => {
      if (!FORWARD[event.key]) return;
      event.preventDefault();
      const next = (i + FORWARD[event.key] + views.length) % views.length;
      set({ view: views[next].name });
      tabs[next].focus();
    }),
  );
  return tabs;
}

function fail(root, error) {
  root.querySelector("footer").replaceChildren(el("p", { role: "alert" }, `This cannot be shown: ${error.message}.`));
  throw error;
}
